package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/pandastack/pandastack/internal/chunk"
	"github.com/pandastack/pandastack/internal/machine"
	"github.com/pandastack/pandastack/internal/pager"
	"github.com/pandastack/pandastack/internal/pager/view"
	"github.com/pandastack/pandastack/internal/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// attachment is what one machine has of an image.
type attachment struct {
	i     *image
	trace pager.Trace
	own   *os.File
	disk  *pager.Disk
	shown *view.File // the disk

	whole     chan struct{}
	failed    chan struct{}
	completes sync.Mutex

	mu     sync.Mutex
	err    error
	closed bool
}

var (
	_ machine.Stream = (*attachment)(nil)
	_ vmm.Memory     = (*attachment)(nil)
)

// Attach implements machine.Streams. What the trace of the snapshot names begins to come at once.
func (m *Manager) Attach(ctx context.Context, snap snapshot.Snapshot, owner, disk string) (_ machine.Stream, err error) {
	i, err := m.image(ctx, snap)
	if err != nil {
		return nil, err
	}
	trace, err := i.known(ctx)
	if err != nil {
		return nil, err
	}
	a := &attachment{i: i, trace: trace, whole: make(chan struct{}), failed: make(chan struct{})}
	if a.own, err = os.OpenFile(disk, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.own.Close())
		}
	}()
	if a.disk, err = pager.NewDisk(i.disk, a.own); err != nil {
		return nil, err
	}
	m.mu.Lock()
	if m.images[snap.Ref] != i { // it became whole and was let go of in this moment
		m.mu.Unlock()
		return nil, fmt.Errorf("snapshot %s is whole by now: ask again", snap.Ref)
	}
	if a.shown, err = m.view.Add(m.ctx, "disk~"+owner, shownDisk{a.disk, a}); err != nil {
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
		i.replay(func(ctx context.Context) { i.disk.Replay(ctx, trace, chunk.FrameSize, nil) })
	}
	if late {
		a.complete(ctx)
	}
	return a, nil
}

// complete makes the machine's disk whole with the snapshot's, which is.
func (a *attachment) complete(ctx context.Context) {
	a.completes.Lock()
	defer a.completes.Unlock()
	a.mu.Lock()
	closed := a.closed
	a.mu.Unlock()
	if closed || a.disk.Whole() {
		return
	}
	base, err := os.Open(a.i.snap.DiskPath())
	if err == nil {
		err = errors.Join(a.disk.Complete(ctx, base), base.Close())
	}
	if err != nil {
		a.i.m.cfg.Log.Error("disk of a machine not made whole", "snapshot", a.i.snap.Ref, "err", err)
		a.fail(fmt.Errorf("disk: %w", err))
		return
	}
	close(a.whole)
}

// fail notes why the machine cannot go on. The first reason stays.
func (a *attachment) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil && !a.closed {
		a.err = err
		close(a.failed)
	}
}

// Memory implements machine.Stream.
func (a *attachment) Memory() vmm.Memory { return a }

// File implements vmm.Memory. What the trace names is put into the kernel's cache of it.
func (a *attachment) File() string {
	i := a.i
	i.warm.Do(func() {
		if len(a.trace) == 0 {
			return
		}
		i.replay(func(ctx context.Context) {
			if _, err := os.Stat(i.shown.Path()); err != nil { // the kernel keeps what it knows a file for
				return
			}
			i.memory.Replay(ctx, a.trace, chunk.FrameSize, i.shown.Warm)
		})
	})
	return i.shown.Path()
}

// Serve implements vmm.Memory.
func (a *attachment) Serve(ctx context.Context, conn *net.UnixConn) error {
	err := a.i.memory.Serve(ctx, conn, pager.ServeOptions{Trace: a.trace})
	if err != nil {
		a.fail(err)
	}
	return err
}

// DiskPath implements machine.Stream.
func (a *attachment) DiskPath() string { return a.shown.Path() }

// Whole implements machine.Stream.
func (a *attachment) Whole() <-chan struct{} { return a.whole }

// Local implements machine.Stream.
func (a *attachment) Local(ctx context.Context) error {
	if err := a.i.local(ctx); err != nil {
		return err
	}
	select {
	case <-a.whole:
		return nil
	case <-a.failed:
		return a.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Failed implements machine.Stream.
func (a *attachment) Failed() <-chan struct{} { return a.failed }

// Err implements machine.Stream.
func (a *attachment) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close implements machine.Stream.
func (a *attachment) Close(context.Context) error {
	a.mu.Lock()
	was := a.closed
	a.closed = true
	a.mu.Unlock()
	if was {
		return nil
	}
	a.shown.Remove()
	a.i.mu.Lock()
	delete(a.i.users, a)
	a.i.mu.Unlock()
	a.completes.Lock() // the file is not closed under it
	err := a.own.Close()
	a.completes.Unlock()
	a.i.m.done(a.i)
	return err
}

// shownDisk is a machine's disk as its monitor has it. A read or write that fails for want of content fails
// the machine; one that the host's disk has no space for is the guest's to see.
type shownDisk struct {
	*pager.Disk
	a *attachment
}

func (s shownDisk) ReadAt(ctx context.Context, p []byte, off int64) error {
	return s.told(ctx, s.Disk.ReadAt(ctx, p, off))
}

func (s shownDisk) WriteAt(ctx context.Context, p []byte, off int64) error {
	return s.told(ctx, s.Disk.WriteAt(ctx, p, off))
}

func (s shownDisk) told(ctx context.Context, err error) error {
	if err != nil && ctx.Err() == nil && !noSpace(err) {
		s.a.fail(fmt.Errorf("disk: %w", err))
	}
	return err
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
