package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc, see proc_pid_stat(5) and sysconf(3): Linux
// counts a hundred a second for programs on every common architecture.
const tick = 10 * time.Millisecond

// cpuTime is what a process has used, and its children that have ended, in user and
// kernel mode. A child that runs counts when it has ended.
func cpuTime(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	used, err := parseStat(text)
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	return used, nil
}

// parseStat adds up the fields 14 to 17 of /proc/PID/stat.
func parseStat(text []byte) (time.Duration, error) {
	// The second field is the command in parentheses and may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("unexpected text %q", text)
	}
	var ticks int64
	for _, field := range fields[11:15] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("unexpected text %q: %w", text, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// memory is what a process has in memory now, and had at most, in bytes.
type memory struct{ resident, peak int64 }

// memoryOf reads VmRSS and VmHWM of a process.
func memoryOf(pid int) (memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	return parseStatus(string(text)), nil
}

// parseStatus reads /proc/PID/status. A process that has ended, but was not waited for
// yet, has no memory.
func parseStatus(text string) (m memory) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch {
		case err != nil:
		case key == "VmRSS":
			m.resident = kilobytes << 10
		case key == "VmHWM":
			m.peak = kilobytes << 10
		}
	}
	return m
}

// children returns the processes that a process has started and not waited for yet.
func children(pid int) []int {
	// None of these files may be there any more when it is read.
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var pids []int
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// program is the file that a process runs, empty when that cannot be seen any more.
func program(pid int) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return path
}

// busyTime is the CPU time that the machine has spent on anything, over all CPUs: the
// first line of /proc/stat.
func busyTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var ticks int64
	for i, field := range strings.Fields(line) {
		// user nice system idle iowait irq softirq, then what others took or what is
		// counted in user already.
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's CPU time: unexpected text %q: %w", line, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}
