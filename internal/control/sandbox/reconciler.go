package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// inventory is what the reconciler asks a host for. hostapi.Host has it.
type inventory interface {
	List(ctx context.Context) ([]hostapi.Machine, error)
	Snapshots(ctx context.Context) ([]hostapi.Snapshot, error)
}

// reconcilable is what the reconciler needs of the sandboxes and snapshots. Service implements it.
type reconcilable interface {
	loadAll(ctx context.Context, q store.SandboxQuery) ([]record, error)
	loadAllSnapshots(ctx context.Context) ([]snapshotRecord, error)
	// reconcileSandbox brings one sandbox to the state of its machine.
	reconcileSandbox(ctx context.Context, id api.SandboxID) error
	// writeDiskBytes writes what the disks of sandboxes take, by id.
	writeDiskBytes(ctx context.Context, all map[string]int64) error
	// reconcileSnapshot removes a snapshot that was never finished, or that its host does not have.
	reconcileSnapshot(ctx context.Context, snap snapshotRecord) error
	// removeOrphan and removeOrphanSnapshot remove what has no record.
	removeOrphan(ctx context.Context, m hostapi.Machine) error
	removeOrphanSnapshot(ctx context.Context, h hostapi.Snapshot) error
}

// reconciler compares the store with the host and corrects the differences.
type reconciler struct {
	host     inventory
	records  reconcilable
	interval time.Duration
	grace    time.Duration // how long what has no record is left alone
	storeID  string
	log      *slog.Logger
	wanted   chan struct{}        // holds a token when a comparison is wanted now
	orphans  map[string]time.Time // when what has no record was first seen
}

func (s *Service) newReconciler() *reconciler {
	return &reconciler{host: s.host, records: s, interval: s.cfg.ReconcileInterval, grace: s.cfg.OrphanGrace,
		storeID: s.db.ID(), log: s.log, wanted: make(chan struct{}, 1), orphans: map[string]time.Time{}}
}

// trigger makes Run compare soon.
func (c *reconciler) trigger() {
	select {
	case c.wanted <- struct{}{}:
	default: // one is enough
	}
}

// Run compares now, when triggered, and at every interval, until ctx ends.
func (c *reconciler) Run(ctx context.Context) error {
	t := time.NewTicker(c.interval)
	defer t.Stop()
	for {
		if err := c.once(ctx); err != nil && ctx.Err() == nil {
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

// Reconcile compares store and host once. Run does so all the time.
//
// A sandbox whose machine does not exist gets its tombstone, operations of processes that have ended are finished or
// undone, states follow the host, and machines and snapshots of sandboxes without a record are removed.
func (s *Service) Reconcile(ctx context.Context) error { return s.newReconciler().once(ctx) }

func (c *reconciler) once(ctx context.Context) error {
	return errors.Join(c.sandboxes(ctx), c.snapshots(ctx))
}

func (c *reconciler) sandboxes(ctx context.Context) error {
	// The host is asked first: a machine in its list had its record by then.
	machines, err := c.host.List(ctx)
	if err != nil {
		return hosterror.Wrap(err, "list machines of", "the host")
	}
	records, err := c.records.loadAll(ctx, store.SandboxQuery{})
	if err != nil {
		return err
	}
	listed := map[hostapi.MachineID]hostapi.Machine{}
	for _, m := range machines {
		listed[m.ID] = m
	}
	var all error
	recorded, measured := map[hostapi.MachineID]bool{}, map[string]int64{}
	for i := range records {
		r := &records[i]
		recorded[r.machineID()] = true
		if m, ok := listed[r.machineID()]; ok && abs(m.DiskBytes-r.DiskBytes) >= diskResolution {
			measured[string(r.ID)] = m.DiskBytes
		}
		// A machine that is missing from the list is in an unknown state: reconcileSandbox asks the host for it.
		if m, ok := listed[r.machineID()]; !ok || differs(r, m) {
			all = errors.Join(all, c.records.reconcileSandbox(ctx, r.ID))
		}
	}
	if len(measured) > 0 {
		all = errors.Join(all, c.records.writeDiskBytes(ctx, measured))
	}
	for _, m := range machines {
		if !recorded[m.ID] && ours(m.Labels) && c.overdue(string(m.ID)) {
			all = errors.Join(all, c.records.removeOrphan(ctx, m))
		}
	}
	return all
}

// diskResolution is by how many bytes a disk must have grown or shrunk for its size to be written.
const diskResolution = 1 << 20

func abs(n int64) int64 { return max(n, -n) }

// writeDiskBytes implements reconcilable.
func (s *Service) writeDiskBytes(ctx context.Context, all map[string]int64) error {
	return s.db.Write(ctx, "disk bytes", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutDiskBytes(ctx, all)
	})
}

func (c *reconciler) snapshots(ctx context.Context) error {
	listed, err := c.host.Snapshots(ctx)
	if err != nil {
		return hosterror.Wrap(err, "list snapshots of", "the host")
	}
	records, err := c.records.loadAllSnapshots(ctx)
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
		if snap.State != store.SnapshotReady || !exists[snap.ID] {
			all = errors.Join(all, c.records.reconcileSnapshot(ctx, snap))
		}
	}
	for _, h := range listed {
		// A snapshot of another store may be all that is left of somebody's work: it is left alone.
		if !recorded[api.SnapshotID(h.ID)] && ours(h.Labels) && h.Labels[storeLabel] == c.storeID &&
			c.overdue(string(h.ID)) {
			all = errors.Join(all, c.records.removeOrphanSnapshot(ctx, h))
		}
	}
	return all
}

// overdue reports whether what has no record was first seen long enough ago to be removed.
func (c *reconciler) overdue(id string) bool {
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

// removeOrphan implements reconcilable. A persistent machine of another store is adopted instead: a user's
// data must survive the loss of a database.
func (s *Service) removeOrphan(ctx context.Context, m hostapi.Machine) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, string(m.ID))
	if !ok {
		return nil
	}
	defer release()
	if _, err := s.load(ctx, api.SandboxID(m.ID)); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if from := m.Labels[storeLabel]; m.Persistent && from != "" && from != s.db.ID() && m.Labels[workspaceLabel] != "" {
		return s.adopt(ctx, m)
	}
	s.log.Warn("a machine without a sandbox is destroyed", "machine", m.ID)
	if err := s.host.Destroy(ctx, m.ID, "it has no sandbox"); err != nil {
		return hosterror.Wrap(err, "destroy", string(m.ID))
	}
	return nil
}

// adopt writes a record for a persistent machine that another store knew.
func (s *Service) adopt(ctx context.Context, m hostapi.Machine) error {
	at := now()
	r := record{
		ID:         api.SandboxID(m.ID),
		Workspace:  api.Workspace(m.Labels[workspaceLabel]),
		State:      statusOf(m.State),
		Instance:   s.instance,
		Owner:      hostapi.ParseOwner(m.Labels[serviceLabel]),
		Template:   string(m.Template),
		Snapshot:   api.SnapshotID(m.Snapshot),
		Parent:     api.SandboxID(m.Parent),
		Injected:   decodeInjected(m.Labels[injectedLabel]),
		Network:    api.Network{AllowOut: m.Egress.Allow, DenyOut: m.Egress.Deny, DenyOthers: m.Egress.DenyOthers},
		Persistent: true,
		OnEnd:      api.TimeoutDelete,
		Created:    m.Created,
		Changed:    at,
		Active:     at,
		Reason:     m.Reason,
	}
	r.applyMachine(m)
	s.log.Warn("a persistent machine of another store is adopted", "machine", m.ID, "workspace", r.Workspace)
	return s.db.Write(ctx, "take in", func(ctx context.Context, tx *store.Tx) error {
		name := string(r.Workspace)
		if err := tx.PutWorkspace(ctx, &store.Workspace{ID: name, Name: name, Created: store.Micros(at)}); err != nil {
			return err
		}
		if err := tx.InsertSandbox(ctx, r.row()); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, &r,
			newEvent{api.EventMachineAdopted, map[string]any{"store": m.Labels[storeLabel]}})
	})
}

// loadAllSnapshots implements reconcilable.
func (s *Service) loadAllSnapshots(ctx context.Context) ([]snapshotRecord, error) {
	rows, err := s.db.Read().Snapshots(ctx, store.SnapshotQuery{})
	if err != nil {
		return nil, err
	}
	all := make([]snapshotRecord, len(rows))
	for i := range rows {
		all[i] = newSnapshotRecord(&rows[i])
	}
	return all, nil
}

// reconcileSnapshot implements reconcilable.
func (s *Service) reconcileSnapshot(ctx context.Context, seen snapshotRecord) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, string(seen.ID))
	if !ok {
		return nil
	}
	defer release()
	snap, err := s.loadSnapshot(ctx, seen.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if snap.State == store.SnapshotReady {
		return s.dropMissingSnapshot(ctx, &snap)
	}
	if s.db.Shared() && snap.Instance != s.instance && time.Since(snap.Created) < s.cfg.ForeignOwnerGrace {
		return nil
	}
	return s.removeSnapshot(ctx, snap.ID)
}

// dropMissingSnapshot removes the row of a snapshot if the host that had it says that it does not exist.
func (s *Service) dropMissingSnapshot(ctx context.Context, snap *snapshotRecord) error {
	_, err := s.host.GetSnapshot(ctx, hostapi.SnapshotID(snap.ID))
	if !errors.Is(err, hostapi.ErrNotFound) {
		return hosterror.Wrap(err, "look at snapshot", string(snap.ID))
	}
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return hosterror.Wrap(err, "ask the host of snapshot", string(snap.ID))
	}
	if snap.Host != "" && c.Host != "" && snap.Host != c.Host {
		return nil // another host has it
	}
	s.log.Warn("a snapshot that its host does not have any more is removed from the registry", "snapshot", snap.ID)
	return s.removeSnapshot(ctx, snap.ID)
}

// removeOrphanSnapshot implements reconcilable.
func (s *Service) removeOrphanSnapshot(ctx context.Context, h hostapi.Snapshot) error {
	if _, err := s.loadSnapshot(ctx, api.SnapshotID(h.ID)); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	s.log.Warn("a snapshot without a record is deleted", "snapshot", h.ID)
	if err := s.host.DeleteSnapshot(ctx, h.ID); err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hosterror.Wrap(err, "delete snapshot", string(h.ID))
	}
	return nil
}
