package lazy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/fusefs"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// attachment is the use of an image by one machine.
type attachment struct {
	i     *image
	trace pager.Trace
	disks []*attachedDisk // in the order of the snapshot's disks

	localDone chan struct{}
	failed    chan struct{}
	hydrateMu sync.Mutex

	mu     sync.Mutex
	err    error
	closed bool
}

// attachedDisk is one disk of a machine.
type attachedDisk struct {
	own     *os.File
	disk    *pager.Disk
	mounted *fusefs.File // nil until it is mounted
}

var (
	_ machine.LazySource = (*attachment)(nil)
	_ vmm.Memory         = (*attachment)(nil)
)

// Attach implements machine.LazySnapshots. It also starts the prefetch of the disk ranges in the snapshot's
// trace.
func (m *Manager) Attach(
	ctx context.Context,
	snap snapshot.Snapshot,
	owner string,
	disks []string,
) (_ machine.LazySource, err error) {
	i, err := m.image(ctx, snap)
	if err != nil {
		return nil, err
	}
	trace, err := i.prefetch.waitLoaded(ctx)
	if err != nil {
		return nil, err
	}
	a := &attachment{i: i, trace: trace, localDone: make(chan struct{}), failed: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.closeDisks())
		}
	}()
	if err := a.openDisks(disks); err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.images[snap.Ref] != i { // it became local and was released just now
		m.mu.Unlock()
		return nil, fmt.Errorf("snapshot %s has just become local; try again", snap.Ref)
	}
	if err := a.mountDisks(owner); err != nil {
		m.mu.Unlock()
		return nil, err
	}
	i.mu.Lock()
	i.users[a] = true
	late := i.completed
	i.mu.Unlock()
	m.mu.Unlock()
	i.record(trace)
	if len(trace) > 0 {
		i.startPrefetch(func(ctx context.Context) {
			for _, disk := range i.disks {
				disk.Prefetch(ctx, trace, chunkstore.FrameSize, nil)
			}
		})
	}
	if late {
		a.hydrate(ctx)
	}
	return a, nil
}

// openDisks opens the machine's own disks.
func (a *attachment) openDisks(paths []string) error {
	if len(paths) != len(a.i.disks) {
		return fmt.Errorf("%d disks for a snapshot with %d", len(paths), len(a.i.disks))
	}
	for n, path := range paths {
		own, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		d := &attachedDisk{own: own}
		a.disks = append(a.disks, d)
		if d.disk, err = pager.NewDisk(a.i.disks[n], own); err != nil {
			return err
		}
	}
	return nil
}

// mountDisks mounts the disks for the monitor of owner. The caller holds the manager's lock.
func (a *attachment) mountDisks(owner string) (err error) {
	for n, d := range a.disks {
		name := "disk~" + owner
		if n > 0 {
			name += "~" + a.i.snap.Data[n-1].Name
		}
		if d.mounted, err = a.i.m.fs.Add(a.i.m.ctx, name, diskContent{d.disk, a}); err != nil {
			return err
		}
	}
	return nil
}

// closeDisks undoes openDisks and mountDisks.
func (a *attachment) closeDisks() (err error) {
	for _, d := range a.disks {
		if d.mounted != nil {
			d.mounted.Remove()
		}
		err = errors.Join(err, d.own.Close())
	}
	return err
}

// hydrate makes the machine's disks complete with the snapshot's disks, which are local.
func (a *attachment) hydrate(ctx context.Context) {
	a.hydrateMu.Lock()
	defer a.hydrateMu.Unlock()
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed {
		return
	}
	select {
	case <-a.localDone:
		return
	default:
	}
	if err := a.hydrateDisks(ctx); err != nil {
		a.i.m.cfg.Log.Error("disk of a machine not completed", "snapshot", a.i.snap.Ref, "err", err)
		a.fail(fmt.Errorf("disk: %w", err))
		return
	}
	close(a.localDone)
}

func (a *attachment) hydrateDisks(ctx context.Context) error {
	for n, path := range a.i.snap.DiskPaths() {
		if a.disks[n].disk.IsLocal() {
			continue
		}
		base, err := os.Open(path)
		if err != nil {
			return err
		}
		if err := errors.Join(a.disks[n].disk.Hydrate(ctx, base), base.Close()); err != nil {
			return err
		}
	}
	return nil
}

// fail records why the machine cannot continue. Only the first reason counts.
func (a *attachment) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && !a.closed {
		a.err = err
		close(a.failed)
	}
}

// Memory implements machine.LazySource.
func (a *attachment) Memory() vmm.Memory { return a }

// File implements vmm.Memory. It also populates the kernel's page cache with the pages in the trace.
func (a *attachment) File() string {
	i := a.i
	i.populate.Do(func() {
		if len(a.trace) == 0 {
			return
		}
		i.startPrefetch(func(ctx context.Context) {
			if _, err := os.Stat(i.mounted.Path()); err != nil { // the kernel keeps pages only of files that it knows
				return
			}
			i.memory.ZeroRanges(a.trace, maxWorkingSet, i.mounted.Populate)
			i.memory.Prefetch(
				ctx,
				i.prefetch.deliver(ctx, i.mounted.Populate),
				chunkstore.FrameSize,
				i.mounted.Populate,
			)
		})
	})
	return i.mounted.Path()
}

// Serve implements vmm.Memory.
func (a *attachment) Serve(ctx context.Context, conn *net.UnixConn) error {
	err := a.i.memory.Serve(ctx, conn, pager.ServeOptions{Prefetch: a.i.prefetch.deliver})
	if err != nil {
		a.fail(err)
	}
	return err
}

// DiskPaths implements machine.LazySource.
func (a *attachment) DiskPaths() []string {
	paths := make([]string, len(a.disks))
	for n, d := range a.disks {
		paths[n] = d.mounted.Path()
	}
	return paths
}

// Complete implements machine.LazySource.
func (a *attachment) Complete() <-chan struct{} { return a.localDone }

// WaitComplete implements machine.LazySource.
func (a *attachment) WaitComplete(ctx context.Context) error {
	if err := a.i.waitLocal(ctx); err != nil {
		return err
	}
	select {
	case <-a.localDone:
		return nil
	case <-a.failed:
		return a.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Failed implements machine.LazySource.
func (a *attachment) Failed() <-chan struct{} { return a.failed }

// Err implements machine.LazySource.
func (a *attachment) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close implements machine.LazySource.
func (a *attachment) Close(context.Context) error {
	a.mu.Lock()
	was := a.closed
	a.closed = true
	a.mu.Unlock()
	if was {
		return nil
	}
	for _, d := range a.disks {
		d.mounted.Remove()
	}
	a.i.mu.Lock()
	delete(a.i.users, a)
	a.i.mu.Unlock()
	a.hydrateMu.Lock() // hydrate must not use closed files
	var err error
	for _, d := range a.disks {
		err = errors.Join(err, d.own.Close())
	}
	a.hydrateMu.Unlock()
	a.i.m.releaseIfIdle(a.i)
	return err
}

// diskContent is a machine's disk as its monitor sees it. A read or write that fails because content is
// missing fails the machine. If the host's disk is full, the guest gets the error.
type diskContent struct {
	*pager.Disk
	a *attachment
}

// ReadAt implements fusefs.Content.
func (s diskContent) ReadAt(ctx context.Context, p []byte, off int64) error {
	return s.failOn(ctx, s.Disk.ReadAt(ctx, p, off))
}

// WriteAt implements fusefs.Writable.
func (s diskContent) WriteAt(ctx context.Context, p []byte, off int64) error {
	return s.failOn(ctx, s.Disk.WriteAt(ctx, p, off))
}

// failOn fails the machine for an error that the guest does not get, and returns the error.
func (s diskContent) failOn(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && !isGuestDiskError(err) {
		s.a.fail(fmt.Errorf("disk: %w", err))
	}
	return err
}

// isGuestDiskError reports whether the guest gets the error: the host's disk is full, or the write lies
// beyond the end of the guest's disk.
func isGuestDiskError(err error) bool { return durable.IsNoSpace(err) || errors.Is(err, syscall.EFBIG) }
