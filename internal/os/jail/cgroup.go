package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound the processes in a cgroup. A zero field sets no limit.
type Limits struct {
	CPUWeight   int           // share of a busy processor, 1 to 10000; the kernel's default is 100
	CPUQuota    time.Duration // processor time per second of real time; 2 s are two processors
	MemoryMax   int64         // bytes, including page cache; swap is not used
	PIDs        int           // processes and threads at the same time
	OpenFiles   int           // descriptors of each process that enters
	OOMScoreAdj int           // of each process that enters, -1000 to 1000; the highest is killed first
}

// Stats is the resource usage of a cgroup.
type Stats struct {
	Memory     int64 // bytes in use
	MemoryPeak int64 // maximum of Memory in bytes; 0 if the kernel does not report it
	CPU        time.Duration
	PIDs       int
	OOMKills   int // processes that the kernel killed because the cgroup ran out of memory
}

// Cgroup is one control group, with a jail for the processes that are started in it.
type Cgroup struct {
	manager *Manager
	name    string
	limits  Limits
}

// Name returns the name by which the cgroup is found again after a restart.
func (g *Cgroup) Name() string { return g.name }

func (g *Cgroup) dir(root string) string { return filepath.Join(root, g.manager.cfg.Prefix, g.name) }

const cpuPeriod = 100 * time.Millisecond // for CPUQuota; the kernel's default

type setting struct {
	file, value string
	optional    bool // not all kernels have the file
}

// settings returns the control files to write for the limits.
func settings(version int, l Limits) (cpu, memory, pids []setting) {
	quota := strconv.FormatInt((l.CPUQuota * cpuPeriod / time.Second).Microseconds(), 10)
	every := strconv.FormatInt(cpuPeriod.Microseconds(), 10)
	bytes := strconv.FormatInt(l.MemoryMax, 10)
	if version == 2 {
		if l.CPUWeight > 0 {
			cpu = append(cpu, setting{file: "cpu.weight", value: strconv.Itoa(l.CPUWeight)})
		}
		if l.CPUQuota > 0 {
			cpu = append(cpu, setting{file: "cpu.max", value: quota + " " + every})
		}
		if l.MemoryMax > 0 {
			memory = append(memory, setting{file: "memory.max", value: bytes},
				setting{file: "memory.swap.max", value: "0", optional: true},
				setting{file: "memory.oom.group", value: "1", optional: true})
		}
	} else {
		if l.CPUWeight > 0 { // the kernel's default is 1024 shares
			cpu = append(cpu, setting{file: "cpu.shares", value: strconv.Itoa(max(2, l.CPUWeight*1024/100))})
		}
		if l.CPUQuota > 0 {
			cpu = append(cpu, setting{file: "cpu.cfs_period_us", value: every},
				setting{file: "cpu.cfs_quota_us", value: quota})
		}
		if l.MemoryMax > 0 {
			memory = append(memory, setting{file: "memory.limit_in_bytes", value: bytes},
				setting{file: "memory.memsw.limit_in_bytes", value: bytes, optional: true})
		}
	}
	if l.PIDs > 0 {
		pids = append(pids, setting{file: "pids.max", value: strconv.Itoa(l.PIDs)})
	}
	return cpu, memory, pids
}

// limit writes the control files.
func (g *Cgroup) limit() error {
	h := g.manager.cfg.Hierarchy
	cpu, memory, pids := settings(h.Version, g.limits)
	for _, part := range []struct {
		root string
		list []setting
	}{{h.CPU, cpu}, {h.Memory, memory}, {h.PIDs, pids}} {
		if err := writeAll(g.dir(part.root), part.list); err != nil {
			return err
		}
	}
	return nil
}

func writeAll(dir string, list []setting) error {
	for _, s := range list {
		err := writeControl(filepath.Join(dir, s.file), s.value)
		if err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("limit %s: %w", s.file, err)
		}
	}
	return nil
}

// Enter moves a process with all its threads into the cgroup and sets its process limits. Children
// that it starts later are in the cgroup as well; earlier children are not.
func (g *Cgroup) Enter(pid int) error {
	for _, root := range g.manager.cfg.Hierarchy.roots() {
		if err := writeControl(filepath.Join(g.dir(root), "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("enter control group %s: %w", g.name, err)
		}
	}
	return g.restrict(pid)
}

// restrict sets the limits that apply to a process instead of the cgroup.
func (g *Cgroup) restrict(pid int) error {
	limits := []rlimit{{"core", unix.RLIMIT_CORE, 0}} // the memory of guests must never reach a core file
	if n := uint64(g.limits.OpenFiles); n > 0 {
		limits = append(limits, rlimit{"open files", unix.RLIMIT_NOFILE, n})
	}
	if err := setLimits(pid, limits); err != nil {
		return err
	}
	if g.limits.OOMScoreAdj != 0 {
		if err := writeControl(fmt.Sprintf("/proc/%d/oom_score_adj", pid),
			strconv.Itoa(g.limits.OOMScoreAdj)); err != nil {
			return fmt.Errorf("set oom score of process %d: %w", pid, err)
		}
	}
	return nil
}

// Stats returns the resource usage of the cgroup.
func (g *Cgroup) Stats() (Stats, error) {
	h := g.manager.cfg.Hierarchy
	r := statsReader{}
	if h.Version == 2 {
		d := g.dir(h.CPU)
		s := Stats{
			Memory:     r.number(d, "memory.current", ""),
			MemoryPeak: r.optional(d, "memory.peak"),
			CPU:        time.Duration(r.number(d, "cpu.stat", "usage_usec")) * time.Microsecond,
			PIDs:       int(r.number(d, "pids.current", "")),
			OOMKills:   int(r.number(d, "memory.events", "oom_kill")),
		}
		return s, r.err
	}
	s := Stats{
		Memory:     r.number(g.dir(h.Memory), "memory.usage_in_bytes", ""),
		MemoryPeak: r.optional(g.dir(h.Memory), "memory.max_usage_in_bytes"),
		CPU:        time.Duration(r.number(g.dir(h.Account), "cpuacct.usage", "")),
		PIDs:       int(r.number(g.dir(h.PIDs), "pids.current", "")),
		OOMKills:   int(r.number(g.dir(h.Memory), "memory.oom_control", "oom_kill")),
	}
	return s, r.err
}

// statsReader reads numbers and keeps the first error.
type statsReader struct{ err error }

// number reads a file that contains one number or, if key is set, lines of a key and a number.
func (r *statsReader) number(dir, file, key string) int64 {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		r.fail(err)
		return 0
	}
	n, err := field(string(b), key)
	if err != nil {
		r.fail(fmt.Errorf("%s: %w", file, err))
	}
	return n
}

// optional is like number, for a file that not all kernels have.
func (r *statsReader) optional(dir, file string) int64 {
	if _, err := os.Stat(filepath.Join(dir, file)); errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	return r.number(dir, file, "")
}

func (r *statsReader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func field(text, key string) (int64, error) {
	if key == "" {
		return strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	}
	for l := range strings.Lines(text) {
		if f := strings.Fields(l); len(f) == 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s in it", key)
}

// Destroy kills all processes in the cgroup, waits until they have exited, and removes the cgroup.
// It may be called at any time and repeatedly.
func (g *Cgroup) Destroy(ctx context.Context) error {
	if err := g.killAndRemove(ctx); err != nil {
		return fmt.Errorf("destroy control group %s: %w", g.name, err)
	}
	g.manager.mu.Lock()
	defer g.manager.mu.Unlock()
	if g.manager.groups[g.name] == g {
		delete(g.manager.groups, g.name)
	}
	return nil
}
