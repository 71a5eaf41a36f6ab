package quota

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Running is what an Enforcer needs of the sandboxes.
type Running interface {
	// Running returns the sandboxes of a workspace that run or are paused.
	Running(ctx context.Context, workspace api.Workspace) ([]api.SandboxID, error)
	// Hibernate hibernates a sandbox, after an operation that is under way. One that does not run is no error.
	Hibernate(ctx context.Context, id api.SandboxID) error
	// SetBounds tells the host what it enforces while machines run.
	SetBounds(ctx context.Context, bounds hostapi.GroupBounds) error
}

// parallel limits how many sandboxes hibernate at once.
const parallel = 4

// Enforcer hibernates the sandboxes of suspended workspaces, and keeps bounds of hosts up to date.
//
// Make one with NewEnforcer. It searches at every interval and when it is triggered, so that a sandbox whose operation
// was under way when its workspace was suspended is found, too.
type Enforcer struct {
	quotas    *Quotas
	sandboxes Running
	interval  time.Duration
	log       *slog.Logger
	wanted    chan struct{} // holds a token when a search is wanted now
}

// NewEnforcer returns an enforcer that searches at an interval.
func NewEnforcer(q *Quotas, s Running, interval time.Duration, log *slog.Logger) *Enforcer {
	return &Enforcer{quotas: q, sandboxes: s, interval: interval, log: log, wanted: make(chan struct{}, 1)}
}

// Trigger makes Run search soon.
func (e *Enforcer) Trigger() {
	select {
	case e.wanted <- struct{}{}:
	default: // one is enough
	}
}

// Run searches now, when triggered, and at every interval, until ctx ends.
func (e *Enforcer) Run(ctx context.Context) error {
	t := time.NewTicker(e.interval)
	defer t.Stop()
	for {
		if err := e.once(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("enforcing quotas and suspensions failed; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.wanted:
		case <-t.C:
		}
	}
}

func (e *Enforcer) once(ctx context.Context) error {
	all := e.setBounds(ctx)
	workspaces, err := e.quotas.Suspended(ctx)
	if err != nil {
		return errors.Join(all, err)
	}
	for _, w := range workspaces {
		all = errors.Join(all, e.hibernateAll(ctx, w))
	}
	return all
}

func (e *Enforcer) setBounds(ctx context.Context) error {
	bounds, err := e.quotas.DiskBounds(ctx)
	if err != nil {
		return err
	}
	return e.sandboxes.SetBounds(ctx, bounds)
}

func (e *Enforcer) hibernateAll(ctx context.Context, workspace api.Workspace) error {
	running, err := e.sandboxes.Running(ctx, workspace)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(parallel)
	for _, id := range running {
		g.Go(func() error { return e.sandboxes.Hibernate(ctx, id) })
	}
	return g.Wait()
}
