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

// PrefetchStore keeps what machines use first of a snapshot where all hosts find it.
type PrefetchStore interface {
	// Load answers what is known of a snapshot; nothing without an error: nothing is.
	Load(ctx context.Context, origin []byte) (Prefetch, error)
	// Save keeps an encoded trace in place of an earlier one and, unless pages is nil, the memory that it names first:
	// all that pages holds. The file stays the caller's.
	Save(ctx context.Context, origin, trace []byte, pages *os.File) error
}

// Config of a Manager. Dir, Store and Open are required.
type Config struct {
	Dir   string // the view is mounted here
	Store *snapshot.Store
	// OpenSource gives the content behind an origin that Begin was given, perhaps by an earlier process. A source that is
	// an io.Closer is closed when it is needed no more.
	OpenSource  func(ctx context.Context, origin []byte) (chunkstore.Source, error)
	Prefetches  PrefetchStore // nil: traces stay on this host
	CheckSpace  func() error  // says when the disk is too full for more of what comes; nil: it never is
	RecordTime  time.Duration // how long uses are recorded after a start; default 10 s
	SettleTime  time.Duration // how long nothing but what is needed is fetched after a start; default 2 s
	ReadTimeout time.Duration // of one read; default 30 s
	Log         *slog.Logger
}

// Manager is all that streams on one host.
type Manager struct {
	cfg    Config
	ctx    context.Context // of what goes on in the background
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	fs     *fusefs.FS // nil: nothing was streamed yet
	images map[snapshot.Ref]*image
}

var _ machine.LazySnapshots = (*Manager)(nil)

// New makes a manager, until Close. It removes a view that an earlier process left, and mounts none before
// it is needed.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	if cfg.Dir == "" || cfg.Store == nil || cfg.OpenSource == nil {
		return nil, errors.New("stream: directory, store and source are required")
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

// Resume goes on with the snapshots that an earlier process left partial. What cannot be opened now is logged
// and stays partial: it is tried again when a machine is to start on it.
func (m *Manager) Resume(ctx context.Context) {
	for _, snap := range m.cfg.Store.AcquireRemoteBacked() {
		if _, err := m.image(ctx, snap); err != nil {
			m.cfg.Log.Warn("partial snapshot not resumed", "snapshot", snap.Ref, "err", err)
		}
		if err := m.cfg.Store.Release(snap.Ref); err != nil {
			m.cfg.Log.Warn("partial snapshot not released", "snapshot", snap.Ref, "err", err)
		}
	}
}

// Close ends everything and takes the view away. Machines that are still attached are lost.
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

// ensureMounted answers the view, and mounts it the first time; from then on there may be something to forget. m.mu is held.
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
	errClosed  = errors.New("streaming has ended on this host")
	errDeleted = errors.New("the snapshot was deleted, and no machine uses it")
)

// releaseDeleted lets go of what was deleted and nobody needs any more, until the manager is closed.
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

// image answers what there is of a partial snapshot, and begins with it if need be.
func (m *Manager) image(ctx context.Context, snap snapshot.Snapshot) (*image, error) {
	m.mu.Lock()
	i := m.images[snap.Ref]
	m.mu.Unlock()
	if i != nil {
		return i, nil
	}
	source, err := m.cfg.OpenSource(ctx, snap.Origin())
	if err != nil {
		return nil, fmt.Errorf("open what %s consists of: %w", snap.Ref, err)
	}
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, errors.Join(err, closeSource(source))
	}
	size, _ := source.Size(name)
	of := m.LoadPrefetch(m.traceLoader(snap.Origin(), filepath.Join(snap.Dir(), traceName)))
	of.setMemory(name, size)
	return m.adopt(snap, source, of)
}

// closeSource closes a source that has an end.
func closeSource(source chunkstore.Source) error {
	if c, ok := source.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// adopt makes an image of a partial snapshot, which it holds, and has it filled. It takes source and lesson over.
func (m *Manager) adopt(snap snapshot.Snapshot, source chunkstore.Source, of *PrefetchLoader) (_ *image, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.images[snap.Ref]
	if m.closed || i != nil {
		if i == nil {
			err = errClosed
		}
		of.Close()
		return i, errors.Join(err, closeSource(source))
	}
	defer func() {
		if err != nil {
			of.Close()
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
	i, err = newImage(m, fs, snap, source, of)
	if err == nil && !now.RemoteBacked() { // it became so after the caller looked
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
			<-of.done // what it brings is part of the difference
			i.prefetchDifference(ctx)
		})
		i.run(func() { i.hydrate(i.ctx) })
	}
	return i, nil
}

// releaseIfIdle lets go of an image that nobody needs any more. What brings its content must not call it, since it is waited for.
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
		m.cfg.Log.Warn("stream not freed", "snapshot", i.snap.Ref, "err", err)
	}
}
