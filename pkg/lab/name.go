package lab

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// A lab is named prefix-pid-id, where id is the start time of the process and, after
// an x, a random number. The start time tells the owner from a later process that was
// given the same pid.
var (
	prefixForm = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)
	nameForm   = regexp.MustCompile(`^([a-z][a-z0-9]{0,15})-([0-9]+)-([0-9a-z]+)x[0-9a-f]{4}$`)
	netnsForm  = regexp.MustCompile(`^([a-z][a-z0-9]{0,15}-[0-9]+-[0-9a-v]+x[0-9a-f]{4})-.+$`)
)

func newName(prefix string) (string, error) {
	if !prefixForm.MatchString(prefix) {
		return "", fmt.Errorf("lab prefix %q: want a letter and up to 15 more lower-case letters and digits", prefix)
	}
	start, err := StartTime(os.Getpid())
	if err != nil {
		return "", err
	}
	return labName(prefix, os.Getpid(), start, uint16(rand.Uint32())), nil
}

func labName(prefix string, pid int, start uint64, id uint16) string {
	return fmt.Sprintf("%s-%d-%sx%04x", prefix, pid, startText(start), id)
}

// startText spells a start time in base 32, whose digits end before the letter x.
func startText(start uint64) string { return strconv.FormatUint(start, 32) }

// Stale lists the labs of a prefix whose process has ended.
func Stale(prefix string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(netnsDir, prefix+"-*"))
	if err != nil {
		return nil, fmt.Errorf("list labs of prefix %s: %w", prefix, err)
	}
	var stale []string
	for _, file := range files {
		m := netnsForm.FindStringSubmatch(filepath.Base(file))
		if m == nil || slices.Contains(stale, m[1]) || ownerLives(m[1]) {
			continue
		}
		stale = append(stale, m[1])
	}
	return stale, nil
}

// ownerLives reports whether the process that made the lab still runs. A name that
// says nothing of a process counts as alive: it is not ours to remove.
func ownerLives(lab string) bool {
	m := nameForm.FindStringSubmatch(lab)
	if m == nil {
		return true
	}
	pid, err := strconv.Atoi(m[2])
	if err != nil {
		return true
	}
	start, err := StartTime(pid)
	return err == nil && startText(start) == m[3]
}

// StartTime is when a process started, in clock ticks since boot: field 22 of
// /proc/PID/stat, see proc_pid_stat(5). Pid and start time together name a process
// for good. The error is os.ErrNotExist when there is no such process.
func StartTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	// The second field is the command in parentheses and may hold anything, spaces and
	// parentheses too; what follows the last one has fixed places.
	_, rest, found := cutLast(stat, []byte(") "))
	fields := bytes.Fields(rest)
	if !found || len(fields) < 20 {
		return 0, fmt.Errorf("read the start time of process %d: unexpected text %q", pid, stat)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

func cutLast(s, sep []byte) (before, after []byte, found bool) {
	if i := bytes.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, nil, false
}
