package doctor

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
)

// socketFiles are the lists of sockets, and the state in which one waits for packets
// there: listening for TCP, and not connected for UDP. Their form is that of
// Documentation/networking/proc_net_tcp.rst.
var socketFiles = []struct{ file, protocol, state string }{
	{"tcp", "TCP", "0A"},
	{"tcp6", "TCP", "0A"},
	{"udp", "UDP", "07"},
	{"udp6", "UDP", "07"},
}

// Sockets lists who waits for packets in this network namespace.
func (m Machine) Sockets(processes []Process) ([]Socket, error) {
	var all []Socket
	var inodes []string
	for _, list := range socketFiles {
		text, err := os.ReadFile(m.path("proc/thread-self/net", list.file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list the sockets: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			address, inode, ok := readSocket(line, list.state)
			if ok {
				all = append(all, Socket{Protocol: list.protocol, Address: address})
				inodes = append(inodes, inode)
			}
		}
	}
	owners := m.owners(processes)
	for i, inode := range inodes {
		all[i].Owner = owners[inode]
	}
	return all, nil
}

// readSocket reads a line of a list of sockets, if the socket is in a state.
func readSocket(line, state string) (address netip.AddrPort, inode string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 || fields[3] != state {
		return netip.AddrPort{}, "", false
	}
	host, port, _ := strings.Cut(fields[1], ":")
	addr, err := readAddress(host)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil {
		return netip.AddrPort{}, "", false
	}
	return netip.AddrPortFrom(addr, uint16(number)), fields[9], true
}

// readAddress reads an address as words of 32 bits, each in the order of the machine.
func readAddress(text string) (netip.Addr, error) {
	words, err := hex.DecodeString(text)
	if err != nil || len(words)%4 != 0 {
		return netip.Addr{}, fmt.Errorf("address %q of a socket", text)
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	addr, ok := netip.AddrFromSlice(words)
	if !ok {
		return netip.Addr{}, fmt.Errorf("address %q of a socket", text)
	}
	return addr.Unmap(), nil
}

// owners finds the processes that have sockets open, by the sockets' inodes. Those of
// other users cannot be seen without rights.
func (m Machine) owners(processes []Process) map[string]*Process {
	owners := map[string]*Process{}
	for i, p := range processes {
		dir := m.path("proc", strconv.Itoa(p.PID), "fd")
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, file := range files {
			target, err := os.Readlink(dir + "/" + file.Name())
			if err != nil {
				continue
			}
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				owners[strings.TrimSuffix(inode, "]")] = &processes[i]
			}
		}
	}
	return owners
}
