package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// LazySnapshots serves partial snapshots to machines that start before all of it is on this host.
type LazySnapshots interface {
	// Attach arranges for the machine owner to start on a partial snapshot. disks are its own disks, in the
	// order of the snapshot's: empty files of at least their size.
	Attach(ctx context.Context, snap snapshot.Snapshot, owner string, disks []string) (LazySource, error)
	// CompleteDisks makes the disks of a machine whole that an earlier process served, with what the machine wrote.
	// It waits until the snapshot's disks are here.
	CompleteDisks(ctx context.Context, snap snapshot.Snapshot, disks []string) error
}

// LazySource is what one machine has of a partial snapshot.
type LazySource interface {
	Memory() vmm.Memory
	// DiskPaths are what its monitor uses as its disks: what it writes goes to its own, the rest is the snapshot's.
	DiskPaths() []string
	// Complete is closed when the snapshot is whole and the machine's own disks are all of its disks. What the
	// monitor has mapped and open goes on to be served.
	Complete() <-chan struct{}
	// WaitComplete waits for that. It answers why when an attempt to bring all of it here fails.
	WaitComplete(ctx context.Context) error
	// Failed is closed when something that the monitor waited for does not come. Err then says why.
	Failed() <-chan struct{}
	Err() error
	Close(ctx context.Context) error // when the monitor has ended
}

// incompleteFile is in a machine's directory while its disks are not whole.
const incompleteFile = "disk.partial"

// streamReason is told of machines whose memory was served by a process of ours that ended.
const streamReason = "the host agent ended, which brought the memory of this machine here piece by piece"

// markDisksIncomplete notes that a new machine's disks lack what its snapshot has.
func markDisksIncomplete(mc *machine) error {
	err := durable.Replace(filepath.Join(mc.dir, incompleteFile), nil, 0o600)
	for _, path := range mc.ownDiskPaths() {
		err = errors.Join(err, os.Chmod(path, 0o600))
	}
	return err
}

// attachLazy attaches a new machine, whose disks are empty, to a snapshot that is not yet downloaded.
func (m *Manager) attachLazy(ctx context.Context, op *operation, mc *machine, snap snapshot.Snapshot) error {
	if m.deps.Lazy == nil {
		return fmt.Errorf("snapshot %s is not all on this host: %w", snap.Ref, hostapi.ErrUnsupported)
	}
	source, err := m.deps.Lazy.Attach(ctx, snap, mc.rec.resourceName(), mc.ownDiskPaths())
	if err != nil {
		return fmt.Errorf("begin to stream %s: %w", snap.Ref, err)
	}
	op.cleanup.Push("end stream", func(ctx context.Context) error {
		mc.set(func() { mc.lazy = nil })
		return source.Close(ctx)
	})
	mc.set(func() { mc.lazy = source })
	return m.reserveHugePages(op, mc)
}

// reserveHugePages has a machine's memory made of huge pages, if those that the host keeps ready suffice for all of it beside
// all of the other machines': a monitor that finds none when it touches its memory is killed.
func (m *Manager) reserveHugePages(op *operation, mc *machine) error {
	if m.cfg.HugeMemory == nil || !m.deps.Driver.Capabilities().Memory.HugePages {
		return nil
	}
	left, err := m.cfg.HugeMemory()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, promised := range m.huge {
		left -= promised
	}
	if all := int64(mc.rec.MemoryMiB) * mib; all <= left {
		op.cleanup.Push("give huge pages back", func(context.Context) error { m.releaseHugePages(mc); return nil })
		m.huge[mc] = all
	}
	return nil
}

// usesHugePages says whether a machine's memory is made of huge pages.
func (m *Manager) usesHugePages(mc *machine) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.huge[mc] > 0
}

// releaseHugePages notes that a machine needs no huge pages any more.
func (m *Manager) releaseHugePages(mc *machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.huge, mc)
}

// waitLocal waits until all that a machine started on is on this host: it can be captured then.
func (m *Manager) waitLocal(ctx context.Context, op *operation, mc *machine) error {
	if mc.lazy == nil {
		return nil
	}
	if err := mc.lazy.WaitComplete(ctx); err != nil {
		return fmt.Errorf("machine %s is not all on this host yet: %w", mc.id, err)
	}
	return op.done("whole")
}

// withStreamFailure is a context that ends when what a machine starts on does not come.
func (mc *machine) withStreamFailure(ctx context.Context) (context.Context, context.CancelFunc) {
	if mc.lazy == nil {
		return ctx, func() {}
	}
	stream := mc.lazy
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-stream.Failed():
			cancel(stream.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// wrapStreamError is err, with why the machine's content did not come if it did not.
func (mc *machine) wrapStreamError(err error) error {
	if err == nil || mc.lazy == nil || mc.lazy.Err() == nil {
		return err
	}
	return fmt.Errorf("its snapshot does not come: %w (%w)", mc.lazy.Err(), err)
}

// closeLazy ends a machine's stream; its monitor has ended.
func (m *Manager) closeLazy(ctx context.Context, mc *machine) error {
	if mc.lazy == nil {
		return nil
	}
	if err := mc.lazy.Close(ctx); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	mc.set(func() { mc.lazy = nil })
	m.releaseHugePages(mc)
	return nil
}

// markDisksComplete notes that a machine's disks are whole.
func (m *Manager) markDisksComplete(mc *machine) {
	if err := os.Remove(filepath.Join(mc.dir, incompleteFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Error("disk that is whole not noted", "machine", mc.id, "err", err)
	}
}

// disksIncomplete says whether a machine's disks may lack what its snapshot has.
func (m *Manager) disksIncomplete(mc *machine) bool {
	_, err := os.Stat(filepath.Join(mc.dir, incompleteFile))
	return err == nil
}

// completeDisks makes the disks of a failed machine whole, and lets go of the snapshot it began on.
func (m *Manager) completeDisks(ctx context.Context, op *operation, mc *machine) error {
	if !m.disksIncomplete(mc) {
		return nil
	}
	base := mc.rec.Base
	if m.deps.Lazy == nil || base == "" {
		return fmt.Errorf("the disk is not all here, and neither is what it began as: %w", hostapi.ErrUnsupported)
	}
	snap, err := m.deps.Store.Acquire(base)
	if err != nil {
		return wrapStoreError(err)
	}
	err = m.deps.Lazy.CompleteDisks(ctx, snap, mc.ownDiskPaths())
	if err := errors.Join(err, m.deps.Store.Release(base)); err != nil {
		return fmt.Errorf("complete the disks: %w", err)
	}
	if err := m.update(mc, surviveHost, func(in *record) { in.Base = "" }); err != nil {
		return err
	}
	m.markDisksComplete(mc)
	if err := m.deps.Store.Release(base); err != nil {
		return err
	}
	return op.done("rescue")
}
