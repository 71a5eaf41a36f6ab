package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// shares are budgets of what all workspaces of the node share.
type shares struct {
	memory      *budget.Pool // bytes that are buffered
	streams     *budget.Pool // requests and connections to guests
	watchers    *budget.Pool // watchers that clients poll
	connections *budget.Pool // to the API, by address
	databases   *budget.Pool // buffers of connections to databases
	logins      *budget.Pool // SSH connections that have not authenticated
}

// Parts of the budgets that settings do not change.
const (
	maxWatchers        = 1024
	maxLogins          = 256
	maxAddressLogins   = 32
	maxSandboxWatchers = 128
	// maxSandboxStreams leaves some of the streams of a guest channel to the node, which must be able to freeze a
	// guest whatever clients do.
	maxSandboxStreams = 448
	minBuffers        = 128 << 20
)

// newShares returns the budgets of a node whose process aims at the given memory, in bytes.
func newShares(c config.Capacity, memory int64) shares {
	levels := func(sandbox int64) []budget.Level {
		return []budget.Level{{Name: "workspace"}, {Name: "sandbox", Max: sandbox}}
	}
	buffers := max(memory/2, minBuffers)
	return shares{
		memory: budget.New(budget.Config{
			Name: "buffered bytes", Total: buffers, Levels: levels(0),
			Account: budget.Level{Name: "request", Max: buffers / 4},
		}),
		streams: budget.New(budget.Config{
			Name: "streams to sandboxes", Total: int64(c.Streams), Levels: levels(maxSandboxStreams),
		}),
		watchers: budget.New(budget.Config{
			Name: "watchers", Total: maxWatchers, Levels: levels(maxSandboxWatchers),
		}),
		connections: budget.New(budget.Config{
			Name: "connections", Total: int64(c.Connections), Levels: []budget.Level{{Name: "address"}},
		}),
		databases: budget.New(budget.Config{
			Name: "buffers of databases", Total: buffers / 2, Levels: []budget.Level{{Name: "database"}},
		}),
		logins: budget.New(budget.Config{
			Name: "SSH connections that have not logged in", Total: maxLogins,
			Levels: []budget.Level{{Name: "address", Max: maxAddressLogins}},
		}),
	}
}

// guests returns the budgets of everything that is open to guests.
func (b shares) guests() activity.Budgets {
	return activity.Budgets{Streams: b.streams, Memory: b.memory}
}

// all returns the budgets for metrics.
func (b shares) all() budget.Collector {
	return budget.Collector{b.memory, b.streams, b.watchers, b.connections, b.databases, b.logins}
}

const minNodeMemory = 256 << 20

// nodeMemory returns the memory that the process aims to stay below, in bytes. total is the memory of the host, and
// limit that of the process's control group, 0 if there is none.
func nodeMemory(c config.Capacity, total, limit int64) int64 {
	if limit > 0 {
		total = min(total, limit)
	}
	want := int64(c.NodeMemoryMiB) << 20
	if want == 0 {
		want = min(int64(c.MemoryReserveMiB)<<20, total/2)
	}
	return max(want, minNodeMemory)
}

// limitMemory makes the garbage collector keep the process below its memory as far as it can, and returns that memory.
// A lower limit of the operator's (GOMEMLIMIT) stays.
func (n *node) limitMemory() (int64, error) {
	total, _, err := machine.ReadMeminfo()
	if err != nil {
		return 0, fmt.Errorf("memory of the host: %w", err)
	}
	limit, err := cgroupMemory("/proc/self/cgroup", "/sys/fs/cgroup")
	if err != nil {
		return 0, fmt.Errorf("memory of the control group: %w", err)
	}
	memory := nodeMemory(n.Config.Capacity, total, limit)
	if now := debug.SetMemoryLimit(-1); now > memory {
		before := debug.SetMemoryLimit(memory)
		n.undo.Push("restore the memory limit", func(context.Context) error {
			debug.SetMemoryLimit(before)
			return nil
		})
	} else {
		memory = now
	}
	return memory, nil
}

// cgroupMemory returns the lowest memory limit of the process's control groups (version 2), 0 if there is none.
func cgroupMemory(membership, root string) (int64, error) {
	data, err := os.ReadFile(membership)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	path := ""
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			path = filepath.Clean("/" + strings.TrimSpace(rest))
		}
	}
	least := int64(math.MaxInt64)
	for ; path != "" && path != "/"; path = filepath.Dir(path) {
		text, err := os.ReadFile(filepath.Join(root, path, "memory.max"))
		if err != nil {
			continue // the group is above this namespace, or has no memory controller
		}
		if v, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil { // otherwise "max"
			least = min(least, v)
		}
	}
	if least == math.MaxInt64 {
		return 0, nil
	}
	return least, nil
}

// oomScore makes the kernel kill the node after machines, whose score is monitorOOM, and after other programs: without
// the node no machine is reachable.
const oomScore = -500

// protect sets the score of a process unless it is lower already. It needs root; without it nothing changes.
func protect(file string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil && now <= oomScore {
		return nil
	}
	return os.WriteFile(file, []byte(strconv.Itoa(oomScore)), 0)
}
