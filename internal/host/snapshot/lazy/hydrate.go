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

// Pauses between hydrations that fail.
const (
	minRetryDelay = time.Second
	maxRetryDelay = 30 * time.Second
)

// hydrate makes the snapshot local, with as many attempts as that takes.
func (i *image) hydrate(ctx context.Context) {
	if !i.waitSettled(ctx) {
		return
	}
	for pause := minRetryDelay; ; pause = min(2*pause, maxRetryDelay) {
		err := i.hydrateOnce(ctx)
		i.mu.Lock()
		close(i.attempt)
		i.attempt, i.attemptErr = make(chan struct{}), err
		i.mu.Unlock()
		if err == nil {
			i.m.cfg.Log.Info("snapshot downloaded", "snapshot", i.snap.Ref)
			break
		}
		if ctx.Err() != nil {
			return
		}
		i.m.cfg.Log.Warn("snapshot not downloaded yet, retrying", "snapshot", i.snap.Ref, "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
	i.m.tasks.Go(func() { i.m.releaseIfIdle(i) })
}

// waitSettled waits until machines have what they need first, or a caller waits for the whole snapshot. It
// returns false if ctx ended.
func (i *image) waitSettled(ctx context.Context) bool {
	for {
		i.mu.Lock()
		rest := i.m.cfg.SettleTime - time.Since(i.lastActivity)
		if i.prefetching > 0 {
			rest = i.m.cfg.SettleTime
		}
		i.mu.Unlock()
		if rest <= 0 {
			return true
		}
		timer := time.NewTimer(rest)
		select {
		case <-timer.C:
		case <-i.urgent:
			timer.Stop()
			return true
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// markLocal records that a new image is local already.
func (i *image) markLocal() error {
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
	close(i.localDone)
	return nil
}

// hydrateOnce downloads all of the memory and the disks, then makes the machines' disks complete.
func (i *image) hydrateOnce(ctx context.Context) error {
	name, err := memoryName(i.snap.Manifest)
	if err != nil {
		return err
	}
	paths := append([]string{filepath.Join(i.snap.Image().Dir, name)}, i.snap.DiskPaths()...)
	for n, file := range append([]*pager.File{i.memory}, i.disks...) {
		if file.IsLocal() {
			continue
		}
		if err := hydrateFile(ctx, file, paths[n], i.m.cfg.CheckSpace); err != nil {
			return err
		}
		if err := file.SetLocal(paths[n]); err != nil {
			return err
		}
	}
	if err := i.m.cfg.Store.MarkLocal(i.snap.Ref); err != nil {
		return err
	}
	i.mu.Lock()
	i.completed = true // from here on Attach hydrates the disks of a new machine itself
	var all []*attachment
	for a := range i.users {
		all = append(all, a)
	}
	i.mu.Unlock()
	close(i.localDone)
	for _, a := range all {
		a.hydrate(ctx)
	}
	return nil
}

func hydrateFile(ctx context.Context, f *pager.File, path string, room func() error) error {
	dst, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Hydrate(ctx, dst, room), dst.Close())
}

// waitLocal waits until the snapshot is local. It returns the error of an attempt that fails meanwhile, even
// one that began before the call.
func (i *image) waitLocal(ctx context.Context) error {
	i.urgentOnce.Do(func() { close(i.urgent) })
	i.mu.Lock()
	attempt := i.attempt
	i.mu.Unlock()
	select {
	case <-i.localDone:
		return nil
	case <-attempt:
	case <-ctx.Done():
		return fmt.Errorf("wait for the download of snapshot %s: %w", i.snap.Ref, context.Cause(ctx))
	case <-i.ctx.Done():
	}
	select {
	case <-i.localDone:
		return nil
	default:
	}
	if i.ctx.Err() != nil {
		return context.Cause(i.ctx)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return fmt.Errorf("download snapshot %s: %w", i.snap.Ref, i.attemptErr)
}

// CompleteDisks implements machine.LazySnapshots.
func (m *Manager) CompleteDisks(ctx context.Context, snap snapshot.Snapshot, disks []string) error {
	bases := snap.DiskPaths()
	if len(disks) != len(bases) {
		return fmt.Errorf("%d disks for a snapshot with %d", len(disks), len(bases))
	}
	if snap.RemoteBacked() {
		i, err := m.image(ctx, snap)
		if err != nil {
			return err
		}
		if err := i.waitLocal(ctx); err != nil {
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
	return errors.Join(pager.HydrateFile(ctx, own, base), own.Close())
}
