// Package twonode measures what needs two nodes: transfers of snapshots and different configurations.
//
// A Pair starts nodes in this process, each with its own data directory, names and network. They share an object store
// in memory with a simulated network: 5 ms latency and 1 Gbit/s. The package uses the nodes over HTTP, as a user would,
// with the templates that the measured node has baked.
package twonode

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Pair holds the configuration of two nodes. It measures one group at a time.
type Pair struct {
	Config              *config.Node // configuration of the node that baked the template
	Version             string
	Template            string
	Driver, Accelerator string // those of that node, used without a probe
	Log                 *slog.Logger

	dir string
}

// The simulated network to the store.
const (
	latency   = 5 * time.Millisecond
	perSecond = 125_000_000 // bytes: 1 Gbit/s
)

// Groups returns the functions that measure the groups of package bench.
func (p *Pair) Groups() map[string]bench.HostSeries {
	all := map[string]func(context.Context, *bench.Sheet) error{
		"stream": p.stream, "cross_host": p.crossHost, "push": p.push, "jail_cost": p.jailCost,
	}
	out := map[string]bench.HostSeries{}
	for name, do := range all {
		out[name] = func(ctx context.Context, s *bench.Sheet) (err error) {
			p.dir = filepath.Join(p.Config.DataDir, "bench")
			if err := os.MkdirAll(p.dir, 0o711); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(p.dir)) }()
			return do(ctx, s)
		}
	}
	return out
}

// newStore returns an empty object store behind the simulated network.
func newStore() *blobtest.Shaped { return blobtest.NewShaped(blobtest.NewMemory(), latency, perSecond) }

// ms returns the milliseconds since began.
func ms(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }
