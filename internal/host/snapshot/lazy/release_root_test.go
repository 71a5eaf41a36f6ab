//go:build root

package lazy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/lazy"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

func (h *host) held() bool {
	_, err := os.Stat(filepath.Join(h.dir, string(ref)))
	return err == nil
}

// A deleted snapshot is released soon, and one that a machine uses when the machine ends: also with an
// unresponsive store and on a full disk.
func TestSnapshotDeletedWhileRemoteBacked(t *testing.T) {
	for name, c := range map[string]struct{ machine, dead, full bool }{
		"unused": {}, "in_use": {machine: true}, "dead": {dead: true}, "dead_in_use": {machine: true, dead: true},
		"full": {full: true}, "full_in_use": {machine: true, full: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, nil)
			snap := h.importSnapshot()
			end := func() {}
			if c.machine {
				s, _ := h.attach(snap, "a")
				end = func() { h.must(s.Close(t.Context())) }
				if c.dead {
					h.source.SetFail(func(string, int64) error { return errors.New("bad gateway") })
					if err := s.WaitComplete(h.deadline()); err == nil {
						t.Error("WaitComplete: got nil, want an error")
					}
				}
			}
			if c.full {
				disktest.FillUp(t, h.dir)
			}
			h.must(h.store.Delete(ref))
			if c.machine && !h.held() {
				t.Error("the snapshot was released while a machine uses it")
			}
			end()
			h.until("it goes", func() bool { return !h.held() })
			if _, err := h.store.Get(ref); !errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("Get of a deleted snapshot: got %v, want ErrNotFound", err)
			}
		})
	}
}

// A deleted snapshot is released although its trace does not load.
func TestSnapshotDeletedWhileTraceLoads(t *testing.T) {
	h := newHost(t, nil)
	params := h.params(h.remote())
	params.Prefetch = h.mgr.LoadPrefetch(func(ctx context.Context) (lazy.Prefetch, error) {
		<-ctx.Done()
		return lazy.Prefetch{}, context.Cause(ctx)
	})
	_, err := h.mgr.Import(t.Context(), params)
	h.must(err)
	h.must(h.store.Delete(ref))
	h.until("it goes", func() bool { return !h.held() })
}

// A deleted snapshot stays while a machine holds a reference: its disk may have to be completed.
func TestDeletedSnapshotStaysWhileHeld(t *testing.T) {
	h := newHost(t, nil)
	snap := h.importSnapshot()
	s, _ := h.attach(snap, "a")
	_, err := h.store.Acquire(ref)
	h.must(err)
	h.must(h.store.Delete(ref))
	h.must(s.Close(t.Context()))
	other, _ := h.attach(snap, "b")
	h.must(other.WaitComplete(h.deadline())) // the whole snapshot is still available
	h.must(other.Close(t.Context()))
	if !h.held() {
		t.Error("the snapshot was released while it is acquired")
	}
	h.must(h.store.Release(ref))
	h.until("it goes", func() bool { return !h.held() })
}

// Hydration stops while the disk has too little space, and continues when there is room again.
func TestHydrateStopsOnLowDiskSpace(t *testing.T) {
	full := errors.New("the disk is as full as it may be")
	var room atomic.Bool
	h := newHost(t, func(c *lazy.Config) {
		c.CheckSpace = func() error {
			if room.Load() {
				return nil
			}
			return full
		}
	})
	s, _ := h.attach(h.importSnapshot(), "a")
	if err := s.WaitComplete(h.deadline()); !errors.Is(err, full) {
		t.Errorf("WaitComplete: got %v, want the error of CheckSpace", err)
	}
	if s.Err() != nil {
		t.Errorf("the machine failed: %v", s.Err())
	}
	room.Store(true)
	for s.WaitComplete(h.deadline()) != nil { // an attempt that began before may still fail
		h.must(h.deadline().Err())
	}
	h.must(s.Close(t.Context()))
}
