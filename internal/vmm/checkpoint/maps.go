package checkpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapping is one line of /proc/PID/maps (proc_pid_maps(5)).
type mapping struct {
	start, end uint64
	prot       int
	shared     bool
	offset     int64
	inode      uint64
	name       string // "" for anonymous memory
}

func (m mapping) ofKernel() bool {
	return strings.HasPrefix(m.name, "[v") // vdso, vvar, vvar_vclock, vsyscall
}

func readMaps(pid int) ([]mapping, error) {
	data, err := os.ReadFile(procPath(pid, "maps"))
	if err != nil {
		return nil, err
	}
	return parseMaps(string(data))
}

func parseMaps(text string) ([]mapping, error) {
	var out []mapping
	for line := range strings.Lines(text) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("map %q: %w", line, err)
		}
		if out = append(out, m); len(out) > maxVMAs {
			return nil, fmt.Errorf("%w: it has more than %d areas", ErrUnsupported, maxVMAs)
		}
	}
	return out, nil
}

func parseMapping(line string) (mapping, error) {
	f := strings.SplitN(line, " ", 6)
	if len(f) < 5 || len(f[1]) != 4 {
		return mapping{}, fmt.Errorf("%d fields", len(f))
	}
	var m mapping
	from, to, _ := strings.Cut(f[0], "-")
	var errs [4]error
	m.start, errs[0] = strconv.ParseUint(from, 16, 64)
	m.end, errs[1] = strconv.ParseUint(to, 16, 64)
	m.offset, errs[2] = strconv.ParseInt(f[2], 16, 64)
	m.inode, errs[3] = strconv.ParseUint(f[4], 10, 64)
	for _, err := range errs {
		if err != nil {
			return mapping{}, err
		}
	}
	for i, prot := range []int{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
		if f[1][i] != '-' {
			m.prot |= prot
		}
	}
	m.shared = f[1][3] == 's'
	if len(f) == 6 {
		m.name = strings.TrimLeft(f[5], " ")
	}
	return m, nil
}

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// OpenMapped opens the file with the given inode that a process maps. The file may have been
// unlinked.
func OpenMapped(pid int, inode uint64) (*os.File, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return nil, err
	}
	for _, m := range maps {
		if m.inode == inode && inode != 0 {
			return os.Open(procPath(pid, fmt.Sprintf("map_files/%x-%x", m.start, m.end)))
		}
	}
	return nil, fmt.Errorf("process %d maps no file with inode %d", pid, inode)
}

// FindMapped returns the address at which a process maps the first bytes of a file. The device
// number is not compared, because btrfs shows another one in /proc/PID/maps than stat(2) returns.
func FindMapped(pid int, inode uint64, bytes int64) (uint64, error) {
	maps, err := readMaps(pid)
	if err != nil {
		return 0, err
	}
	at, ok := findMapped(maps, inode, bytes)
	if !ok {
		return 0, fmt.Errorf("process %d has no mapping of %d bytes of inode %d", pid, bytes, inode)
	}
	return at, nil
}

// findMapped treats mappings that are adjacent both in memory and in the file as one mapping.
func findMapped(maps []mapping, inode uint64, bytes int64) (uint64, bool) {
	var start, end uint64
	for _, m := range maps {
		if m.inode != inode {
			continue
		}
		switch {
		case m.offset == 0:
			start, end = m.start, m.end
		case m.start == end && uint64(m.offset) == m.start-start:
			end = m.end
		}
		if end-start == uint64(bytes) {
			return start, true
		}
	}
	return 0, false
}
