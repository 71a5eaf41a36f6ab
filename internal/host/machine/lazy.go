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

// LazySnapshots serves snapshots that are not yet downloaded to machines that start on them.
type LazySnapshots interface {
	// Attach prepares the machine owner to start on a snapshot that is not yet downloaded. disks are its own disks,
	// in the order of the snapshot's: empty files of at least their size.
	Attach(ctx context.Context, snap snapshot.Snapshot, owner string, disks []string) (LazySource, error)
	// CompleteDisks completes the disks of a machine that an earlier process served, keeping what the machine wrote.
	// It waits until the snapshot's disks are downloaded.
	CompleteDisks(ctx context.Context, snap snapshot.Snapshot, disks []string) error
}

// LazySource serves a snapshot that is not yet downloaded to one machine.
type LazySource interface {
	Memory() vmm.Memory
	// DiskPaths are the disks for the monitor: writes go to the machine's own, reads of the rest to the snapshot's.
	DiskPaths() []string
	// Complete is closed when the snapshot is downloaded and the machine's own disks are complete. Files that the
	// monitor has mapped and open continue to be served.
	Complete() <-chan struct{}
	// WaitComplete waits for that. It returns the error of a download of everything that failed.
	WaitComplete(ctx context.Context) error
	// Failed is closed when a download that the monitor waits for has failed. Err then returns why.
	Failed() <-chan struct{}
	Err() error
	Close(ctx context.Context) error // called when the monitor has ended
}

// incompleteFile exists in a machine's directory while its disks are incomplete.
const incompleteFile = "disk.partial"

// streamReason is the reason of machines that ended because the process that served their memory did.
const streamReason = "the host agent ended while it was downloading the memory of this machine"

// markDisksIncomplete records that a new machine's disks lack content of its snapshot.
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
		return fmt.Errorf("snapshot %s is not completely downloaded to this host: %w", snap.Ref, hostapi.ErrUnsupported)
	}
	source, err := m.deps.Lazy.Attach(ctx, snap, mc.rec.resourceName(), mc.snapshotDiskPaths(snap))
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

// reserveHugePages makes a machine's memory of huge pages, if the host has enough of them ready for all of it beside
// all of the other machines': the kernel kills a monitor that finds none when it touches its memory.
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
	for _, reserved := range m.huge {
		left -= reserved
	}
	if all := int64(mc.rec.MemoryMiB) * mib; all <= left {
		op.cleanup.Push("release huge pages", func(context.Context) error { m.releaseHugePages(mc); return nil })
		m.huge[mc] = all
	}
	return nil
}

// usesHugePages reports whether a machine's memory is made of huge pages.
func (m *Manager) usesHugePages(mc *machine) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.huge[mc] > 0
}

// releaseHugePages records that a machine needs no huge pages any more.
func (m *Manager) releaseHugePages(mc *machine) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.huge, mc)
}

// waitLocal waits until everything that a machine started on is downloaded: it can be captured then.
func (m *Manager) waitLocal(ctx context.Context, op *operation, mc *machine) error {
	if mc.lazy == nil {
		return nil
	}
	if err := mc.lazy.WaitComplete(ctx); err != nil {
		return fmt.Errorf("machine %s is not completely downloaded to this host yet: %w", mc.id, err)
	}
	return op.done("download")
}

// withStreamFailure returns a context that ends when a download fails that the machine waits for.
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

// wrapStreamError adds to err why a download that the machine waited for failed, if one did.
func (mc *machine) wrapStreamError(err error) error {
	if err == nil || mc.lazy == nil || mc.lazy.Err() == nil {
		return err
	}
	return fmt.Errorf("download of its snapshot failed: %w (%w)", mc.lazy.Err(), err)
}

// closeLazy detaches a machine, whose monitor has ended, from its lazy source.
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

// markDisksComplete records that a machine's disks are complete.
func (m *Manager) markDisksComplete(mc *machine) {
	if err := os.Remove(filepath.Join(mc.dir, incompleteFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.log.Error("complete disk not recorded", "machine", mc.id, "err", err)
	}
}

// disksIncomplete reports whether a machine's disks may lack content of its snapshot.
func (m *Manager) disksIncomplete(mc *machine) bool {
	_, err := os.Stat(filepath.Join(mc.dir, incompleteFile))
	return err == nil
}

// completeDisks completes the disks of a failed machine and releases the snapshot that it began on.
func (m *Manager) completeDisks(ctx context.Context, op *operation, mc *machine) error {
	if !m.disksIncomplete(mc) {
		return nil
	}
	base := mc.rec.Base
	if m.deps.Lazy == nil || base == "" {
		return fmt.Errorf("the disk is incomplete, and the snapshot that it began on is missing: %w",
			hostapi.ErrUnsupported)
	}
	snap, err := m.deps.Store.Acquire(base)
	if err != nil {
		return wrapStoreError(err)
	}
	err = m.deps.Lazy.CompleteDisks(ctx, snap, mc.snapshotDiskPaths(snap))
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
	return op.done("complete")
}
