// Package relief hibernates idle sandboxes while the host is short of memory.
package relief

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

const (
	// Interval is the time between looks at the host's memory.
	Interval = 5 * time.Second
	idle     = time.Minute // that a sandbox was not used before it is hibernated for lack of memory
	atOnce   = 2           // hibernations at one look: each writes memory to the disk
)

// Host tells how much memory there is. hostapi.Host has it.
type Host interface {
	Capacity(ctx context.Context) (hostapi.Capacity, error)
}

// Candidate is a sandbox that runs and may be hibernated, and how long it was not used.
type Candidate struct {
	ID   api.SandboxID
	Idle time.Duration
}

// MayHibernate reports whether a candidate was not used for long enough.
func (c Candidate) MayHibernate() bool { return c.Idle >= idle }

// Sandboxes are the sandboxes of the host.
type Sandboxes interface {
	Candidates(ctx context.Context) ([]Candidate, error)
	// HibernateIdle hibernates a sandbox, unless it is used or an operation is in progress.
	HibernateIdle(ctx context.Context, id api.SandboxID) error
}

// Once hibernates the candidates that were idle for longest, if the host is short of memory.
func Once(ctx context.Context, host Host, sandboxes Sandboxes) error {
	c, err := host.Capacity(ctx)
	if err != nil || !c.MemoryShort {
		return err
	}
	all, err := sandboxes.Candidates(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c Candidate) bool { return !c.MayHibernate() })
	slices.SortFunc(all, func(a, b Candidate) int { return cmp.Compare(b.Idle, a.Idle) })
	for _, c := range all[:min(len(all), atOnce)] {
		err = errors.Join(err, sandboxes.HibernateIdle(ctx, c.ID))
	}
	return err
}
