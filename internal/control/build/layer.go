package build

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
)

// newLayerID returns a new name for the snapshot of a layer.
func newLayerID() hostapi.SnapshotID {
	return hostapi.SnapshotID("lay" + strings.ToLower(rand.Text()))
}

// findCached finds the last step of a stage whose result the workspace has as a layer. It returns the number of steps
// that the layer contains and its snapshot, or -1 and "" if not even the base has a layer.
func (a *buildRun) findCached(ctx context.Context, st *stage) (done int, snapshot string, err error) {
	rows, err := a.s.db.Read().Layers(ctx, a.row.Workspace, st.keys...)
	if err != nil {
		return 0, "", err
	}
	have, err := a.s.host.Snapshots(ctx)
	if err != nil {
		return 0, "", err
	}
	for i := len(st.keys) - 1; i >= 0; i-- {
		if i > st.force || i > 0 && a.spec.NoCache {
			continue
		}
		n := slices.IndexFunc(rows, func(l store.Layer) bool { return l.Name == st.keys[i] })
		if n < 0 {
			continue
		}
		row := rows[n]
		if !slices.ContainsFunc(have, func(h hostapi.Snapshot) bool { return string(h.ID) == row.Snapshot }) {
			continue // the host has lost it; gcLayers removes the row
		}
		err := a.s.db.Write(ctx, "layer use", func(ctx context.Context, tx *store.Tx) error {
			return tx.TouchLayer(ctx, row.Workspace, row.Name, store.Micros(time.Now()))
		})
		if err != nil {
			return 0, "", err
		}
		return i, row.Snapshot, nil
	}
	return -1, "", nil
}

// saveLayer keeps the current state of the machine as a layer. It replaces a layer of that name that another build has
// made meanwhile.
func (a *buildRun) saveLayer(ctx context.Context, b *buildMachine, name string) (_ string, err error) {
	id := newLayerID()
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	back.Push("delete the layer", func(ctx context.Context) error { return a.s.deleteSnapshot(ctx, id) })
	if err := b.snapshot(ctx, id); err != nil {
		return "", err
	}
	bytes, err := a.s.bytesOf(ctx, id)
	if err != nil {
		return "", err
	}
	now := store.Micros(time.Now())
	row := &store.Layer{
		Workspace: a.row.Workspace,
		Name:      name,
		Snapshot:  string(id),
		Bytes:     bytes,
		Created:   now,
		Used:      now,
	}
	var old []store.Layer
	err = a.s.db.Write(ctx, "layer", func(ctx context.Context, tx *store.Tx) (err error) {
		if old, err = tx.Layers(ctx, row.Workspace, name); err != nil {
			return err
		}
		if err := tx.DeleteLayer(ctx, row.Workspace, name); err != nil {
			return err
		}
		return tx.InsertLayer(ctx, row)
	})
	if err != nil {
		return "", err
	}
	back.Forget()           // the row is written
	for _, l := range old { // machines that run on it keep its files
		if err := a.s.deleteSnapshot(ctx, hostapi.SnapshotID(l.Snapshot)); err != nil {
			return "", err
		}
	}
	return string(id), a.onStep("layer")
}

func (s *Service) bytesOf(ctx context.Context, id hostapi.SnapshotID) (int64, error) {
	list, err := s.host.Snapshots(ctx)
	if err != nil {
		return 0, err
	}
	for _, snap := range list {
		if snap.ID == id {
			return snap.Bytes, nil
		}
	}
	return 0, hostapi.ErrNotFound
}
