package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// LogBytes bounds what is kept of a child's output: the first of it.
const LogBytes = 64 << 10

// newLog makes a file in memory that cannot grow: a child that prints for ever fills nothing, nobody
// has to read, and a later program finds it as the child's descriptor.
func newLog() (*os.File, error) {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	f := os.NewFile(uintptr(fd), "log")
	if err := f.Truncate(LogBytes); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// adoptLog finds the log of a process that an earlier program started; nil if there is none.
func adoptLog(pid int) *os.File {
	path := procFile(pid, "fd/2")
	target, err := os.Readlink(path)
	if err != nil || !strings.HasPrefix(target, "/memfd:log") {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	return f
}

// Log answers the first LogBytes of what the process printed, with what cannot be printed replaced.
func (p *Process) Log() string {
	if p.log == nil {
		return ""
	}
	data, err := io.ReadAll(io.NewSectionReader(p.log, 0, LogBytes))
	if err != nil {
		return ""
	}
	if end := bytes.IndexByte(data, 0); end >= 0 {
		data = data[:end]
	}
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r != 0x7f {
			return r
		}
		return '?'
	}, string(data))
}

// Tail is the last n lines of Log, joined by "; ".
func (p *Process) Tail(n int) string {
	lines := strings.FieldsFunc(p.Log(), func(r rune) bool { return r == '\n' })
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
