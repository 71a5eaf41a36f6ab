package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dumpFDs returns the descriptors of a process with their roles.
func dumpFDs(pid int, role func(*os.File, string) (string, error)) (_ []FD, err error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(pidfd)
	list, err := os.ReadDir(procPath(pid, "fd"))
	if err != nil {
		return nil, err
	}
	if len(list) > maxFDs {
		return nil, fmt.Errorf("%w: more than %d descriptors", ErrUnsupported, maxFDs)
	}
	var out []FD
	for _, e := range list {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n >= fdStage {
			return nil, fmt.Errorf("%w: descriptor %s", ErrUnsupported, e.Name())
		}
		fd, err := dumpFD(pid, pidfd, n, role)
		if err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", n, err)
		}
		out = append(out, fd)
	}
	slices.SortFunc(out, func(a, b FD) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

func dumpFD(pid, pidfd, n int, role func(*os.File, string) (string, error)) (FD, error) {
	link, err := os.Readlink(procPath(pid, "fd/"+strconv.Itoa(n)))
	if err != nil {
		return FD{}, err
	}
	out := FD{Number: n}
	flags, err := fdInfo(pid, n, "flags:", 8)
	if err != nil {
		return FD{}, err
	}
	out.NonBlocking = flags&unix.O_NONBLOCK != 0
	switch link {
	case "anon_inode:[eventfd]":
		out.Role = EventRole
		out.Value, err = fdInfo(pid, n, "eventfd-count:", 16)
		return out, err
	case "anon_inode:[signalfd]":
		out.Role = SignalRole
		out.Value, err = fdInfo(pid, n, "sigmask:", 16)
		return out, err
	case "anon_inode:[eventpoll]":
		out.Role = PollRole
		return out, checkEpollEmpty(pid, n)
	}
	fd, err := unix.PidfdGetfd(pidfd, n, 0)
	if err != nil {
		return FD{}, err
	}
	f := os.NewFile(uintptr(fd), link)
	out.Role, err = role(f, link)
	return out, errors.Join(err, f.Close())
}

// checkEpollEmpty returns ErrUnsupported if an epoll descriptor watches any file.
func checkEpollEmpty(pid, n int) error {
	data, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(n)))
	if err != nil {
		return err
	}
	if strings.Contains(string(data), "tfd:") {
		return fmt.Errorf("%w: it has files in an epoll instance", ErrUnsupported)
	}
	return nil
}

// fdInfo reads a number from /proc/PID/fdinfo (proc_pid_fdinfo(5)).
func fdInfo(pid, n int, key string, base int) (uint64, error) {
	data, err := os.ReadFile(procPath(pid, "fdinfo/"+strconv.Itoa(n)))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, key); ok {
			return strconv.ParseUint(strings.TrimSpace(v), base, 64)
		}
	}
	return 0, fmt.Errorf("%w: its fdinfo has no %s", ErrUnsupported, key)
}
