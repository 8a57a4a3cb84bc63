package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what the kernel tells in files, of the network namespace of the calling
// thread where that matters.
type Machine struct {
	// root is where proc and sys are found.
	root string
}

// NewMachine returns the machine that the process runs on.
func NewMachine() Machine { return Machine{root: "/"} }

func (m Machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.root}, parts...)...)
}

// Setting reads a number below /proc/sys, such as "net/ipv4/ip_forward". The error
// wraps fs.ErrNotExist if the kernel has no such setting.
func (m Machine) Setting(name string) (int, error) {
	text, err := os.ReadFile(m.path("proc/sys", name))
	if err != nil {
		return 0, fmt.Errorf("read a kernel setting: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read kernel setting %s: %w", name, err)
	}
	return n, nil
}

// ReversePath reads rp_filter of every interface, and of "all".
func (m Machine) ReversePath() (map[string]int, error) {
	const conf = "net/ipv4/conf"
	entries, err := os.ReadDir(m.path("proc/sys", conf))
	if err != nil {
		return nil, fmt.Errorf("list the interfaces' settings: %w", err)
	}
	values := map[string]int{}
	for _, entry := range entries {
		value, err := m.Setting(filepath.Join(conf, entry.Name(), "rp_filter"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the interface has gone
		}
		if err != nil {
			return nil, err
		}
		values[entry.Name()] = value
	}
	return values, nil
}

// Processes lists the processes that can be seen.
func (m Machine) Processes() ([]Process, error) {
	entries, err := os.ReadDir(m.path("proc"))
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}
	// Of the thread: that of the process is its first thread's.
	here, hereErr := os.Readlink(m.path("proc/thread-self/ns/net"))
	var all []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		p, err := m.process(pid)
		if err != nil {
			continue // it has ended
		}
		if there, err := os.Readlink(m.path("proc", entry.Name(), "ns/net")); err == nil && hereErr == nil {
			p.Network = NetworkOther
			if there == here {
				p.Network = NetworkSame
			}
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Process) int { return a.PID - b.PID })
	return all, nil
}

func (m Machine) process(pid int) (Process, error) {
	dir := strconv.Itoa(pid)
	name, err := os.ReadFile(m.path("proc", dir, "comm"))
	if err != nil {
		return Process{}, err
	}
	line, err := os.ReadFile(m.path("proc", dir, "cmdline"))
	if err != nil {
		return Process{}, err
	}
	p := Process{PID: pid, Name: strings.TrimSuffix(string(name), "\n")}
	if line = bytes.TrimSuffix(line, []byte{0}); len(line) > 0 {
		p.Args = strings.Split(string(line), "\x00")
	}
	return p, nil
}

// LockHolder returns who holds a flock(2) on a file; nil if nobody does, or nobody who
// can be seen from here.
func (m Machine) LockHolder(file string) (*Process, error) {
	var stat unix.Stat_t
	if err := unix.Stat(m.path(file), &stat); errors.Is(err, unix.ENOENT) {
		return nil, nil // nobody ever took it
	} else if err != nil {
		return nil, fmt.Errorf("look for %s: %w", file, err)
	}
	text, err := os.ReadFile(m.path("proc/locks"))
	if err != nil {
		return nil, fmt.Errorf("list the locks: %w", err)
	}
	pid := lockedBy(string(text), fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino))
	if pid <= 0 {
		return nil, nil
	}
	p, err := m.process(pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it has ended, and with it the lock
	}
	return &p, err
}

// lockedBy returns the process that holds a flock on a file, 0 if none does. The lines
// of /proc/locks are described in proc_locks(5); those with an arrow only wait.
func lockedBy(locks, file string) int {
	lines := bufio.NewScanner(strings.NewReader(locks))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			return pid
		}
	}
	return 0
}

// Bridges lists the bridges in this network namespace out of all interfaces. It must
// be told their names: /sys shows those of the namespace that it was mounted in.
func (m Machine) Bridges(interfaces []string) []string {
	return slices.DeleteFunc(slices.Clone(interfaces), func(name string) bool {
		_, err := os.Stat(m.path("sys/class/net", name, "bridge"))
		return err != nil
	})
}
