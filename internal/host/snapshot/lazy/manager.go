package lazy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/pager/fusefs"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// PrefetchStore keeps the traces of snapshots, and their working sets, where all hosts find them.
type PrefetchStore interface {
	// Load returns what is stored for a snapshot. It returns a zero Prefetch and no error if that is nothing.
	Load(ctx context.Context, origin []byte) (Prefetch, error)
	// Save stores an encoded trace, replacing an earlier one. Unless pages is nil, it also stores the content
	// of pages: the working set, the part of the memory that the trace names first. The file stays the
	// caller's.
	Save(ctx context.Context, origin, trace []byte, pages *os.File) error
}

// Config configures a Manager. Dir, Store and OpenSource are required.
type Config struct {
	Dir   string // mount point of the files
	Store *snapshot.Store
	// OpenSource opens the content of an origin given to Import, perhaps by an earlier process. A source that
	// is an io.Closer is closed when it is not needed any more.
	OpenSource  func(ctx context.Context, origin []byte) (chunkstore.Source, error)
	Prefetches  PrefetchStore // nil: traces stay on this host
	CheckSpace  func() error  // returns an error if the disk has too little space for more content; nil: no check
	RecordTime  time.Duration // how long uses are recorded after a start; default 10 s
	SettleTime  time.Duration // how long hydration waits after a start; default 2 s
	ReadTimeout time.Duration // of one read; default 30 s
	Log         *slog.Logger
}

// Manager owns all remote-backed snapshots of one host.
type Manager struct {
	cfg    Config
	ctx    context.Context // of the background tasks
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fs     *fusefs.FS // nil until the first snapshot needs it
	images map[snapshot.Ref]*image
}

var _ machine.LazySnapshots = (*Manager)(nil)

// New makes a manager that runs until Close. It removes the mount that an earlier process left. The first
// snapshot that needs a mount makes one.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Dir == "" || cfg.Store == nil || cfg.OpenSource == nil {
		return nil, errors.New("lazy: Dir, Store and OpenSource are required")
	}
	cfg.RecordTime = cmp.Or(cfg.RecordTime, 10*time.Second)
	cfg.SettleTime = cmp.Or(cfg.SettleTime, 2*time.Second)
	if cfg.CheckSpace == nil {
		cfg.CheckSpace = func() error { return nil }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := fusefs.Unmount(cfg.Dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	return &Manager{cfg: cfg, ctx: ctx, cancel: cancel, images: map[snapshot.Ref]*image{}}, nil
}

// Resume continues the hydration of snapshots that an earlier process left remote-backed. It logs snapshots
// that cannot be opened now; they stay remote-backed and are opened again when a machine starts on them.
func (m *Manager) Resume(ctx context.Context) {
	for _, snap := range m.cfg.Store.AcquireRemoteBacked() {
		if _, err := m.image(ctx, snap); err != nil {
			m.cfg.Log.Warn("hydration of a snapshot not resumed", "snapshot", snap.Ref, "err", err)
		}
		if err := m.cfg.Store.Release(snap.Ref); err != nil {
			m.cfg.Log.Warn("snapshot not released", "snapshot", snap.Ref, "err", err)
		}
	}
}

// Close stops all tasks and unmounts the files. Machines that are still attached are lost.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	fs := m.fs
	m.mu.Unlock()
	m.cancel(errClosed)
	m.tasks.Wait()
	var all error
	if fs != nil {
		all = fs.Close()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref, i := range m.images {
		delete(m.images, ref)
		for a := range i.users {
			for _, d := range a.disks {
				all = errors.Join(all, d.own.Close())
			}
		}
		all = errors.Join(all, i.close())
	}
	return all
}

// ensureMounted returns the mount and makes it the first time. It then also starts releaseDeleted. The caller
// holds m.mu.
func (m *Manager) ensureMounted() (*fusefs.FS, error) {
	if m.fs != nil {
		return m.fs, nil
	}
	fs, err := fusefs.Mount(m.ctx, m.cfg.Dir)
	if err != nil {
		return nil, err
	}
	m.fs = fs
	m.tasks.Go(m.releaseDeleted)
	return fs, nil
}

var (
	errClosed  = errors.New("the manager of remote-backed snapshots is closed")
	errDeleted = errors.New("the snapshot was deleted and no machine uses it")
)

// releaseDeleted releases images of deleted snapshots that are not used any more, until the manager is
// closed.
func (m *Manager) releaseDeleted() {
	for {
		select {
		case <-m.cfg.Store.Released():
		case <-m.ctx.Done():
			return
		}
		m.mu.Lock()
		all := slices.Collect(maps.Values(m.images))
		m.mu.Unlock()
		for _, i := range all {
			m.releaseIfIdle(i)
		}
	}
}

// image returns the image of a remote-backed snapshot and opens it if necessary.
func (m *Manager) image(ctx context.Context, snap snapshot.Snapshot) (*image, error) {
	m.mu.Lock()
	i := m.images[snap.Ref]
	m.mu.Unlock()
	if i != nil {
		return i, nil
	}
	source, err := m.cfg.OpenSource(ctx, snap.Origin())
	if err != nil {
		return nil, fmt.Errorf("open the content of snapshot %s: %w", snap.Ref, err)
	}
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, errors.Join(err, closeSource(source))
	}
	size, _ := source.Size(name)
	loader := m.LoadPrefetch(m.traceLoader(snap.Origin(), filepath.Join(snap.Dir(), traceName)))
	loader.setMemory(name, size)
	return m.adopt(snap, source, loader)
}

// closeSource closes a source if it is an io.Closer.
func closeSource(source chunkstore.Source) error {
	if c, ok := source.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// adopt makes an image of a remote-backed snapshot, acquires the snapshot, and starts its hydration. It takes
// over source and loader.
func (m *Manager) adopt(
	snap snapshot.Snapshot,
	source chunkstore.Source,
	loader *PrefetchLoader,
) (_ *image, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.images[snap.Ref]
	if m.closed || i != nil {
		if i == nil {
			err = errClosed
		}
		loader.Close()
		return i, errors.Join(err, closeSource(source))
	}
	defer func() {
		if err != nil {
			loader.Close()
			err = errors.Join(err, closeSource(source))
		}
	}()
	fs, err := m.ensureMounted()
	if err != nil {
		return nil, err
	}
	now, err := m.cfg.Store.Acquire(snap.Ref)
	if err != nil {
		return nil, err
	}
	i, err = newImage(m, fs, snap, source, loader)
	if err == nil && !now.RemoteBacked() { // it became local after the caller looked
		if err = i.markLocal(); err != nil {
			i.cancel(err)
			i.mounted.Remove()
		}
	}
	if err != nil {
		return nil, errors.Join(err, m.cfg.Store.Release(snap.Ref))
	}
	m.images[snap.Ref] = i
	if now.RemoteBacked() {
		i.startPrefetch(func(ctx context.Context) {
			<-loader.done // the content that it delivers is part of the difference
			i.prefetchDifference(ctx)
		})
		i.run(func() { i.hydrate(i.ctx) })
	}
	return i, nil
}

// releaseIfIdle closes an image that is not used any more. A task of the image must not call it, since it
// waits for the tasks.
func (m *Manager) releaseIfIdle(i *image) {
	m.mu.Lock()
	idle := m.images[i.snap.Ref] == i && i.idle()
	if idle {
		delete(m.images, i.snap.Ref)
	}
	m.mu.Unlock()
	if !idle {
		return
	}
	if err := i.close(); err != nil {
		m.cfg.Log.Warn("snapshot image not closed", "snapshot", i.snap.Ref, "err", err)
	}
}
