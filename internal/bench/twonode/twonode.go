// Package twonode measures what takes two nodes: snapshots that move between them through an object store, and a
// node beside one that is set up differently.
//
// It owns two nodes in this process, with data directories, names and networks of their own, and the line to a
// store in memory: 5 ms to the other end and 1 Gbit/s. It speaks to the nodes over HTTP, as a user would.
// Templates are those that the measured node baked. It must not know how content moves.
//
// A Pair measures one thing at a time.
package twonode

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/bench"
	"github.com/pandastack/pandastack/internal/host/blob/blobtest"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Pair is what two nodes are made of.
type Pair struct {
	Config              *config.Node // of the node that baked the template
	Version             string
	Template            string
	Driver, Accelerator string // of that node: they are not looked for again
	Log                 *slog.Logger

	dir string
}

// The line to the store.
const (
	latency   = 5 * time.Millisecond
	perSecond = 125_000_000 // bytes: 1 Gbit/s
)

// Groups gives what a pair measures, by the names of package bench.
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

// line is a new store behind the line.
func line() *blobtest.Shaped { return blobtest.NewShaped(blobtest.NewMemory(), latency, perSecond) }

// ms is how long something took that began at a time.
func ms(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }
