package lazy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Pauses between fills that fail.
const (
	firstPause = time.Second
	maxPause   = 30 * time.Second
)

// fill makes the snapshot whole, however often it fails.
func (i *image) fill(ctx context.Context) {
	if !i.wait(ctx) {
		return
	}
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := i.fillOnce(ctx)
		i.mu.Lock()
		close(i.attempt)
		i.attempt, i.fillErr = make(chan struct{}), err
		i.mu.Unlock()
		if err == nil {
			i.m.cfg.Log.Info("snapshot is whole", "snapshot", i.snap.Ref)
			break
		}
		if ctx.Err() != nil {
			return
		}
		i.m.cfg.Log.Warn("snapshot is not whole yet", "snapshot", i.snap.Ref, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
	i.m.work.Go(func() { i.m.done(i) })
}

// wait waits until machines have what they need first, or somebody hurries. False: ctx ended.
func (i *image) wait(ctx context.Context) bool {
	for {
		i.mu.Lock()
		rest := i.m.cfg.Settle - time.Since(i.quiet)
		if i.replays > 0 {
			rest = i.m.cfg.Settle
		}
		i.mu.Unlock()
		if rest <= 0 {
			return true
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-i.hurry:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// here notes that a new image is whole already.
func (i *image) here() error {
	name, err := memoryName(i.snap.Manifest)
	if err == nil {
		err = i.memory.SetLocal(filepath.Join(i.snap.Image().Dir, name))
		for n, path := range i.snap.DiskPaths() {
			err = errors.Join(err, i.disks[n].SetLocal(path))
		}
	}
	if err != nil {
		return err
	}
	i.completed = true
	close(i.whole)
	return nil
}

// fillOnce brings all of the memory and the disks here, then makes the machines' disks whole.
func (i *image) fillOnce(ctx context.Context) error {
	name, err := memoryName(i.snap.Manifest)
	if err != nil {
		return err
	}
	paths := append([]string{filepath.Join(i.snap.Image().Dir, name)}, i.snap.DiskPaths()...)
	for n, file := range append([]*pager.File{i.memory}, i.disks...) {
		if file.Local() {
			continue
		}
		if err := fillFile(ctx, file, paths[n], i.m.cfg.Room); err != nil {
			return err
		}
		if err := file.SetLocal(paths[n]); err != nil {
			return err
		}
	}
	if err := i.m.cfg.Store.Complete(i.snap.Ref); err != nil {
		return err
	}
	i.mu.Lock()
	i.completed = true // whoever attaches from here on does it themselves
	var all []*attachment
	for a := range i.users {
		all = append(all, a)
	}
	i.mu.Unlock()
	close(i.whole)
	for _, a := range all {
		a.complete(ctx)
	}
	return nil
}

func fillFile(ctx context.Context, f *pager.File, path string, room func() error) error {
	dst, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Fill(ctx, dst, room), dst.Close())
}

// local waits until the snapshot is whole. It answers why when an attempt, begun before or after, fails.
func (i *image) local(ctx context.Context) error {
	i.hurried.Do(func() { close(i.hurry) })
	i.mu.Lock()
	attempt := i.attempt
	i.mu.Unlock()
	select {
	case <-i.whole:
		return nil
	case <-attempt:
	case <-ctx.Done():
		return fmt.Errorf("wait for all of snapshot %s: %w", i.snap.Ref, context.Cause(ctx))
	case <-i.ctx.Done():
	}
	select {
	case <-i.whole:
		return nil
	default:
	}
	if i.ctx.Err() != nil {
		return context.Cause(i.ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return fmt.Errorf("bring all of snapshot %s here: %w", i.snap.Ref, i.fillErr)
}

// Rescue implements machine.Streams.
func (m *Manager) Rescue(ctx context.Context, snap snapshot.Snapshot, disks []string) error {
	bases := snap.DiskPaths()
	if len(disks) != len(bases) {
		return fmt.Errorf("%d disks of a snapshot with %d", len(disks), len(bases))
	}
	if snap.Partial() {
		i, err := m.image(ctx, snap)
		if err != nil {
			return err
		}
		if err := i.local(ctx); err != nil {
			return err
		}
	}
	for n, disk := range disks {
		if err := rescueDisk(ctx, bases[n], disk); err != nil {
			return err
		}
	}
	return nil
}

func rescueDisk(ctx context.Context, from, to string) error {
	base, err := os.Open(from)
	if err != nil {
		return err
	}
	defer base.Close()
	own, err := os.OpenFile(to, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(pager.CompleteFile(ctx, own, base), own.Close())
}
