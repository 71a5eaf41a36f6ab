package proc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is a process's use of the host's resources.
type Usage struct {
	Started  time.Time
	CPU      time.Duration // user and system time of all its threads since the start
	RSSBytes int64
	PSSBytes int64 // resident memory, with shared pages divided among their users
	VSZBytes int64
	Threads  int

	ReadBytes, WrittenBytes int64 // from and to storage
}

// Usage reads the usage of the process from /proc. The error is ErrGone if the process has ended. The kernel walks
// the page tables of the process for the proportional size, which takes about a millisecond for a guest of 256 MiB.
func (p *Process) Usage() (Usage, error) {
	st, err := readStat(p.id.PID)
	if err != nil {
		return Usage{}, err
	}
	if st.start != p.id.Start || st.state == 'Z' {
		return Usage{}, fmt.Errorf("process %d: %w", p.id.PID, ErrGone)
	}
	boot, err := bootTime()
	if err != nil {
		return Usage{}, err
	}
	status, err := os.ReadFile(procFile(p.id.PID, "status"))
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: %w", p.id.PID, ErrGone)
	}
	u := Usage{
		Started:  startTime(st.start, boot),
		CPU:      time.Duration(st.utime+st.stime) * (time.Second / userHZ),
		Threads:  st.threads,
		RSSBytes: kilobytes(status, "VmRSS:"),
		VSZBytes: kilobytes(status, "VmSize:"),
	}
	rollup, err := os.ReadFile(procFile(p.id.PID, "smaps_rollup"))
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: memory: %w", p.id.PID, err)
	}
	u.PSSBytes = kilobytes(rollup, "Pss:")
	io, err := os.ReadFile(procFile(p.id.PID, "io"))
	if err != nil {
		return Usage{}, fmt.Errorf("process %d: storage: %w", p.id.PID, err)
	}
	u.ReadBytes, u.WrittenBytes = number(io, "read_bytes:"), number(io, "write_bytes:")
	return u, nil
}

// kilobytes returns the bytes of a line "key   123 kB"; 0 if the line is missing.
func kilobytes(text []byte, key string) int64 { return number(text, key) << 10 }

// number returns the number of a line "key   123"; 0 if the line is missing.
func number(text []byte, key string) int64 {
	s := bufio.NewScanner(bytes.NewReader(text))
	for s.Scan() {
		rest, ok := strings.CutPrefix(s.Text(), key)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

func bootTime() (time.Time, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "btime "); ok {
			sec, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return time.Unix(sec, 0), err
		}
	}
	return time.Time{}, fmt.Errorf("/proc/stat has no btime")
}
