package system

import (
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// tick is the unit of /proc/stat, USER_HZ: 100 per second on all known Linux systems.
const tick = 10 * time.Millisecond

// Stats reads the machine's statistics from proc, its /proc, and from the file system at root. A number that the
// kernel does not report is 0.
func Stats(proc, root string) (guestapi.Stats, error) {
	s := guestapi.Stats{CPUs: runtime.NumCPU(), Time: time.Now()}
	mem, err := os.ReadFile(path.Join(proc, "meminfo"))
	if err != nil {
		return s, fmt.Errorf("read memory: %w", err)
	}
	memory(&s, string(mem))
	var fs unix.Statfs_t
	if err := unix.Statfs(root, &fs); err != nil {
		return s, fmt.Errorf("read disk: %w", err)
	}
	s.DiskTotal = int64(fs.Blocks) * fs.Bsize
	s.DiskUsed = int64(fs.Blocks-fs.Bfree) * fs.Bsize
	read := func(name string) string {
		b, _ := os.ReadFile(path.Join(proc, name)) // a kernel without the file reports nothing
		return string(b)
	}
	s.CPUBusy = busy(read("stat"))
	if f := strings.Fields(read("loadavg")); len(f) > 3 {
		s.Load1, _ = strconv.ParseFloat(f[0], 64)
		_, all, _ := strings.Cut(f[3], "/")
		s.Processes, _ = strconv.Atoi(all)
	}
	if f := strings.Fields(read("uptime")); len(f) > 0 {
		up, _ := strconv.ParseFloat(f[0], 64)
		s.Uptime = time.Duration(up * float64(time.Second))
	}
	s.NetRx, s.NetTx = traffic(read("net/dev"))
	return s, nil
}

func memory(s *guestapi.Stats, text string) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "MemTotal:":
			s.MemTotal = kib << 10
		case "MemAvailable:":
			s.MemAvailable = kib << 10
		case "Cached:", "Buffers:", "SReclaimable:":
			s.MemCached += kib << 10
		}
	}
}

// busy returns the time of the first line of /proc/stat without idle and iowait.
func busy(text string) time.Duration {
	line, _, _ := strings.Cut(text, "\n")
	var sum int64
	for i, f := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, _ := strconv.ParseInt(f, 10, 64)
		sum += n
	}
	return time.Duration(sum) * tick
}

// traffic returns the bytes of all devices except loopback.
func traffic(text string) (rx, tx int64) {
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 9 || strings.TrimSpace(name) == "lo" {
			continue
		}
		r, _ := strconv.ParseInt(f[0], 10, 64)
		t, _ := strconv.ParseInt(f[8], 10, 64)
		rx, tx = rx+r, tx+t
	}
	return rx, tx
}
