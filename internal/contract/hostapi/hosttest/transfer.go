package hosttest

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Objects is an object store that simulated hosts share.
type Objects struct {
	mu        sync.Mutex
	snapshots map[string]snapshot // by workspace and id; guarded by mu
	backups   map[string]backup   // by workspace and id; guarded by mu
}

// ShareObjects gives hosts one object store. Without one, transfers are ErrUnsupported.
func ShareObjects(hosts ...*Host) *Objects {
	o := &Objects{snapshots: map[string]snapshot{}, backups: map[string]backup{}}
	o.Share(hosts...)
	return o
}

// Share gives more hosts the object store.
func (o *Objects) Share(hosts ...*Host) {
	for _, h := range hosts {
		h.mu.Lock()
		h.objects = o
		h.mu.Unlock()
	}
}

// withObjects runs an operation on a host that has an object store, with both locked.
func (h *Host) withObjects(ctx context.Context, op, id string, do func(o *Objects) error) error {
	return h.runOp(ctx, op, id, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.objects == nil {
			return fmt.Errorf("%s %s: %w", op, id, hostapi.ErrUnsupported)
		}
		h.objects.mu.Lock()
		defer h.objects.mu.Unlock()
		return do(h.objects)
	})
}

// PushSnapshot implements hostapi.Host.
func (h *Host) PushSnapshot(
	ctx context.Context,
	workspace string,
	id hostapi.SnapshotID,
) (out hostapi.PushResult, err error) {
	err = h.withObjects(ctx, "pushsnapshot", string(id), func(o *Objects) error {
		s, ok := h.snapshots[id]
		if !ok {
			return fmt.Errorf("snapshot %s: %w", id, hostapi.ErrNotFound)
		}
		out = hostapi.PushResult{Stored: s.Bytes, Took: time.Millisecond}
		if _, there := o.snapshots[workspace+"/"+string(id)]; !there {
			out.Bytes, out.Uploaded = s.Bytes, s.Bytes
		}
		o.snapshots[workspace+"/"+string(id)] = *s
		return nil
	})
	return out, err
}

// PullSnapshot implements hostapi.Host.
func (h *Host) PullSnapshot(
	ctx context.Context,
	workspace string,
	id hostapi.SnapshotID,
	labels map[string]string,
) (out hostapi.PullResult, err error) {
	err = h.withObjects(ctx, "pullsnapshot", string(id), func(o *Objects) error {
		if s, here := h.snapshots[id]; here {
			out = hostapi.PullResult{Snapshot: s.Snapshot}
			return nil
		}
		s, ok := o.snapshots[workspace+"/"+string(id)]
		if !ok {
			return fmt.Errorf("snapshot %s: %w", id, hostapi.ErrNotFound)
		}
		all := map[string]string{}
		maps.Copy(all, s.Labels)
		maps.Copy(all, labels)
		s.Labels, s.Host = all, h.id
		h.snapshots[id] = &s
		out = hostapi.PullResult{Snapshot: s.Snapshot, Env: maps.Clone(s.env), Fetched: s.Bytes, Took: time.Millisecond}
		return nil
	})
	return out, err
}

// StreamSnapshot implements hostapi.Host.
func (h *Host) StreamSnapshot(
	ctx context.Context,
	workspace string,
	id hostapi.SnapshotID,
	labels map[string]string,
) (hostapi.PullResult, error) {
	return h.PullSnapshot(ctx, workspace, id, labels)
}

// DeletePushed implements hostapi.Host.
func (h *Host) DeletePushed(ctx context.Context, workspace string, id hostapi.SnapshotID) error {
	return h.withObjects(ctx, "deletepushed", string(id), func(o *Objects) error {
		delete(o.snapshots, workspace+"/"+string(id))
		return nil
	})
}
