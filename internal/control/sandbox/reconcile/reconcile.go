// Package reconcile compares the store with the host and has the differences corrected.
package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
)

// Host is what is compared with the store. hostapi.Host has it.
type Host interface {
	List(ctx context.Context) ([]hostapi.Machine, error)
	Snapshots(ctx context.Context) ([]hostapi.Snapshot, error)
}

// Sandbox is a sandbox of the store.
type Sandbox struct {
	ID        api.SandboxID
	DiskBytes int64                      // that its disks take, as written last
	Differs   func(hostapi.Machine) bool // reports whether it and its machine disagree
}

// Snapshot is a snapshot of the store.
type Snapshot struct {
	ID    api.SnapshotID
	Ready bool // it was finished and is not being removed
}

// Records reads and corrects the store.
type Records interface {
	Sandboxes(ctx context.Context) ([]Sandbox, error)
	Snapshots(ctx context.Context) ([]Snapshot, error)
	// Owns reports whether what has these labels on the host should have a record.
	Owns(labels map[string]string) bool
	// OwnsSnapshot is Owns for snapshots.
	OwnsSnapshot(labels map[string]string) bool

	// ReconcileSandbox brings one sandbox to the state of its machine.
	ReconcileSandbox(ctx context.Context, id api.SandboxID) error
	// WriteDiskBytes writes what the disks of sandboxes take, by id.
	WriteDiskBytes(ctx context.Context, all map[string]int64) error
	// ReconcileSnapshot removes a snapshot that was never finished, or that its host does not have.
	ReconcileSnapshot(ctx context.Context, id api.SnapshotID) error
	// RemoveOrphan and RemoveOrphanSnapshot remove what has no record.
	RemoveOrphan(ctx context.Context, m hostapi.Machine) error
	RemoveOrphanSnapshot(ctx context.Context, h hostapi.Snapshot) error
}

// Reconciler compares the store with the host and corrects the differences.
type Reconciler struct {
	host     Host
	records  Records
	interval time.Duration
	grace    time.Duration // how long what has no record is left alone
	log      *slog.Logger
	wanted   chan struct{}        // holds a token when a comparison is wanted now
	orphans  map[string]time.Time // when what has no record was first seen
}

// New returns a reconciler that compares at every interval.
//
// What has no record is left alone for the time of grace after it was first seen.
func New(host Host, records Records, interval, grace time.Duration, log *slog.Logger) *Reconciler {
	return &Reconciler{host: host, records: records, interval: interval, grace: grace, log: log,
		wanted: make(chan struct{}, 1), orphans: map[string]time.Time{}}
}

// Trigger makes Run compare soon.
func (c *Reconciler) Trigger() {
	select {
	case c.wanted <- struct{}{}:
	default: // one is enough
	}
}

// Run compares now, when triggered, and at every interval, until ctx ends.
func (c *Reconciler) Run(ctx context.Context) error {
	t := time.NewTicker(c.interval)
	defer t.Stop()
	for {
		if err := c.Once(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("comparing store and host failed; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wanted:
		case <-t.C:
		}
	}
}

// Once compares once.
func (c *Reconciler) Once(ctx context.Context) error {
	return errors.Join(c.sandboxes(ctx), c.snapshots(ctx))
}

func (c *Reconciler) sandboxes(ctx context.Context) error {
	// The host is asked first: a machine in its list had its record by then.
	machines, err := c.host.List(ctx)
	if err != nil {
		return hosterror.Wrap(err, "list machines of", "the host")
	}
	records, err := c.records.Sandboxes(ctx)
	if err != nil {
		return err
	}
	listed := map[hostapi.MachineID]hostapi.Machine{}
	for _, m := range machines {
		listed[m.ID] = m
	}
	var all error
	recorded, measured := map[hostapi.MachineID]bool{}, map[string]int64{}
	for _, r := range records {
		id := hostapi.MachineID(r.ID)
		recorded[id] = true
		m, ok := listed[id]
		if ok && abs(m.DiskBytes-r.DiskBytes) >= diskResolution {
			measured[string(r.ID)] = m.DiskBytes
		}
		// A machine that is missing from the list is in an unknown state: ReconcileSandbox asks the host for it.
		if !ok || r.Differs(m) {
			all = errors.Join(all, c.records.ReconcileSandbox(ctx, r.ID))
		}
	}
	if len(measured) > 0 {
		all = errors.Join(all, c.records.WriteDiskBytes(ctx, measured))
	}
	for _, m := range machines {
		if !recorded[m.ID] && c.records.Owns(m.Labels) && c.overdue(string(m.ID)) {
			all = errors.Join(all, c.records.RemoveOrphan(ctx, m))
		}
	}
	return all
}

// diskResolution is by how many bytes a disk must have grown or shrunk for its size to be written.
const diskResolution = 1 << 20

func abs(n int64) int64 { return max(n, -n) }

func (c *Reconciler) snapshots(ctx context.Context) error {
	listed, err := c.host.Snapshots(ctx)
	if err != nil {
		return hosterror.Wrap(err, "list snapshots of", "the host")
	}
	records, err := c.records.Snapshots(ctx)
	if err != nil {
		return err
	}
	exists := map[api.SnapshotID]bool{}
	for _, h := range listed {
		exists[api.SnapshotID(h.ID)] = true
	}
	var all error
	recorded := map[api.SnapshotID]bool{}
	for _, snap := range records {
		recorded[snap.ID] = true
		if !snap.Ready || !exists[snap.ID] {
			all = errors.Join(all, c.records.ReconcileSnapshot(ctx, snap.ID))
		}
	}
	for _, h := range listed {
		if !recorded[api.SnapshotID(h.ID)] && c.records.OwnsSnapshot(h.Labels) && c.overdue(string(h.ID)) {
			all = errors.Join(all, c.records.RemoveOrphanSnapshot(ctx, h))
		}
	}
	return all
}

// overdue reports whether what has no record was first seen long enough ago to be removed.
func (c *Reconciler) overdue(id string) bool {
	first, ok := c.orphans[id]
	if !ok {
		first = time.Now()
		c.orphans[id] = first
	}
	if time.Since(first) < c.grace {
		return false
	}
	delete(c.orphans, id)
	return true
}
