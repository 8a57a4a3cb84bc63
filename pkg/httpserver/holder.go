package httpserver

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portHolder names the process that listens on the port of address, or returns ""
// when that cannot be seen: in a container without the host's process namespace
// the holder is invisible. proc is where procfs is mounted.
func portHolder(proc, address string) string {
	_, portText, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return ""
	}
	inode := listenerInode(proc, uint16(port))
	if inode == "" {
		return ""
	}
	links, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "fd", "*"))
	if err != nil {
		return ""
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(link))
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			return ""
		}
		return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), filepath.Base(dir))
	}
	return ""
}

// listenerInode finds the inode of a TCP socket that listens on port, in the
// format of /proc/net/tcp: column 2 is the local address with the port in
// hexadecimal, column 4 the state (0A is LISTEN), column 10 the inode.
func listenerInode(proc string, port uint16) string {
	suffix := fmt.Sprintf(":%04X", port)
	for _, file := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(filepath.Join(proc, "self", "net", file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) > 9 && strings.HasSuffix(fields[1], suffix) && fields[3] == "0A" {
				return fields[9]
			}
		}
	}
	return ""
}
