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

// LogBytes is how much of a child's output is kept: the first bytes.
const LogBytes = 64 << 10

// newLog makes a file in memory of fixed size: a child that prints without end fills nothing, no process has to read,
// and a later program finds the log as the child's descriptor.
func newLog() (*os.File, error) {
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	f := os.NewFile(uintptr(fd), "log")
	if err := f.Truncate(LogBytes); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	seals := unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// adoptLog returns the log of a process that an earlier program started; nil if it has none.
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

// Log returns the first LogBytes of the process's output. Characters that cannot be printed are replaced.
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

// Tail returns the last n lines of Log, joined by "; ".
func (p *Process) Tail(n int) string {
	lines := strings.FieldsFunc(p.Log(), func(r rune) bool { return r == '\n' })
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
