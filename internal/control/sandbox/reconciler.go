package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/reconcile"
	"github.com/pandastack/pandastack/internal/control/store"
)

func (s *Service) newReconciler() *reconcile.Reconciler {
	return reconcile.New(s.host, reconcilable{s}, s.cfg.ReconcileInterval, s.cfg.OrphanGrace, s.log)
}

// Reconcile compares store and host once. Run does so all the time.
//
// A sandbox whose machine does not exist gets its tombstone, operations of processes that have ended are finished or
// undone, states follow the host, and machines and snapshots of sandboxes without a record are removed.
func (s *Service) Reconcile(ctx context.Context) error { return s.newReconciler().Once(ctx) }

// reconcilable implements reconcile.Records.
type reconcilable struct{ *Service }

// Sandboxes implements reconcile.Records.
func (s reconcilable) Sandboxes(ctx context.Context) ([]reconcile.Sandbox, error) {
	records, err := s.loadAll(ctx, store.SandboxQuery{})
	all := make([]reconcile.Sandbox, 0, len(records))
	for i := range records {
		r := &records[i]
		all = append(all, reconcile.Sandbox{ID: r.ID, DiskBytes: r.DiskBytes,
			Differs: func(m hostapi.Machine) bool {
				return differs(r, m) || !s.silent.Since(r.ID).Equal(m.Unresponsive)
			}})
	}
	return all, err
}

// Snapshots implements reconcile.Records.
func (s reconcilable) Snapshots(ctx context.Context) ([]reconcile.Snapshot, error) {
	rows, err := s.db.Read().Snapshots(ctx, store.SnapshotQuery{})
	all := make([]reconcile.Snapshot, 0, len(rows))
	for i := range rows {
		row := &rows[i]
		all = append(all, reconcile.Snapshot{ID: api.SnapshotID(row.ID), Ready: row.State == store.SnapshotReady})
	}
	return all, err
}

// Owns implements reconcile.Records.
func (s reconcilable) Owns(labels map[string]string) bool { return ours(labels) }

// OwnsSnapshot implements reconcile.Records. A snapshot of another store may be all that is left of somebody's work:
// it is left alone.
func (s reconcilable) OwnsSnapshot(labels map[string]string) bool {
	return ours(labels) && labels[storeLabel] == s.db.ID()
}

// WriteDiskBytes implements reconcile.Records.
func (s reconcilable) WriteDiskBytes(ctx context.Context, all map[string]int64) error {
	return s.db.Write(ctx, "disk bytes", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutDiskBytes(ctx, all)
	})
}

// RemoveOrphan implements reconcile.Records. A persistent machine of another store is adopted instead: a user's
// data must survive the loss of a database.
func (s reconcilable) RemoveOrphan(ctx context.Context, m hostapi.Machine) error {
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

// ReconcileSnapshot implements reconcile.Records.
func (s reconcilable) ReconcileSnapshot(ctx context.Context, id api.SnapshotID) error {
	ctx, release, ok := s.locks.TryAcquire(ctx, string(id))
	if !ok {
		return nil
	}
	defer release()
	snap, err := s.loadSnapshot(ctx, id)
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

// RemoveOrphanSnapshot implements reconcile.Records.
func (s reconcilable) RemoveOrphanSnapshot(ctx context.Context, h hostapi.Snapshot) error {
	if _, err := s.loadSnapshot(ctx, api.SnapshotID(h.ID)); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	s.log.Warn("a snapshot without a record is deleted", "snapshot", h.ID)
	if err := s.host.DeleteSnapshot(ctx, h.ID); err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hosterror.Wrap(err, "delete snapshot", string(h.ID))
	}
	return nil
}
