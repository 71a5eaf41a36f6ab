package lazy

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/fusefs"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// image is one snapshot that streams, or that machines still use which began so. It holds the snapshot.
type image struct {
	m        *Manager
	snap     snapshot.Snapshot
	source   chunkstore.Source
	memory   *pager.File
	disks    []*pager.File // in the order of the snapshot's
	mounted  *fusefs.File  // the memory
	populate sync.Once

	ctx    context.Context // of what brings content, which free ends
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // and waits for

	prefetch   *PrefetchLoader
	urgent     chan struct{} // closed when somebody waits for all of it
	urgentOnce sync.Once
	localDone  chan struct{} // closed when all of it is here

	recording atomic.Bool // what machines use is recorded

	mu            sync.Mutex
	users         map[*attachment]bool
	prefetching   int           // under way
	lastActivity  time.Time     // when the last machine began, or its replay ended
	recordStarted bool          // a recording is under way, or was
	attempt       chan struct{} // closed when the fill under way ended
	attemptErr    error         // of the last fill that ended
	completed     bool          // disks of machines are made whole by whoever attaches
}

func newImage(
	m *Manager,
	fs *fusefs.FS,
	snap snapshot.Snapshot,
	source chunkstore.Source,
	of *PrefetchLoader,
) (_ *image, err error) {
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, err
	}
	i := &image{
		m: m, snap: snap, source: source, prefetch: of, urgent: make(chan struct{}), localDone: make(chan struct{}),
		users: map[*attachment]bool{}, lastActivity: time.Now(), attempt: make(chan struct{}),
	}
	if i.memory, err = pager.NewFile(source, name, m.cfg.ReadTimeout); err != nil {
		return nil, err
	}
	for _, name := range snapshot.DiskFiles(snap.Data) {
		disk, err := pager.NewFile(source, name, m.cfg.ReadTimeout)
		if err != nil {
			return nil, err
		}
		i.disks = append(i.disks, disk)
	}
	i.ctx, i.cancel = context.WithCancelCause(m.ctx)
	if i.mounted, err = fs.Add(m.ctx, strings.ReplaceAll(string(snap.Ref), "/", "~"), memoryContent{i.memory, i}); err != nil {
		i.cancel(err)
		return nil, err
	}
	return i, nil
}

// close ends what an image has. No machine uses it.
func (i *image) close() error {
	i.cancel(errDeleted)
	i.prefetch.Close()
	i.work.Wait()
	i.mounted.Remove()
	err := i.memory.Close()
	for _, disk := range i.disks {
		err = errors.Join(err, disk.Close())
	}
	return errors.Join(err, closeSource(i.source), i.m.cfg.Store.Release(i.snap.Ref))
}

// idle says that nobody needs the image any more: it is whole, or its snapshot was deleted and nobody but it holds that.
func (i *image) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.localDone:
		return len(i.users) == 0
	default:
		return len(i.users) == 0 && !i.m.cfg.Store.InUse(i.snap.Ref, 1)
	}
}

// fail fails every machine that is attached.
func (i *image) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for a := range i.users {
		a.fail(err)
	}
}

// maxDifference is how much a snapshot may differ from what is here so that all of the difference comes at once, memory
// first: it is less than what one second of a usual line carries, and machines use most of it soon.
const maxDifference = 64 << 20

// prefetchDifference brings the difference, if it is small.
func (i *image) prefetchDifference(ctx context.Context) {
	ranges := i.traceRanges()
	for _, file := range append([]*pager.File{i.memory}, i.disks...) {
		differ, all := file.RemoteRanges(maxDifference)
		if !all {
			return
		}
		ranges = append(ranges, differ...)
	}
	_ = i.source.Prefetch(ctx, ranges) // who needs it asks for it again, and is told why it does not come
}

// traceRanges is what the trace names of the files that there are and does not come with it.
func (i *image) traceRanges() []chunkstore.Range {
	var known []chunkstore.Range
	for _, r := range i.prefetch.rest {
		if size, ok := i.source.Size(r.File); ok && r.Offset < size {
			r.Length = min(r.Length, size-r.Offset)
			known = append(known, r)
		}
	}
	return known
}

func (i *image) tracePath() string { return filepath.Join(i.snap.Dir(), traceName) }

// run runs what brings content until it ends, or free ends it.
func (i *image) run(do func()) {
	i.work.Add(1)
	i.m.tasks.Go(func() {
		defer i.work.Done()
		do()
	})
}

// startPrefetch runs do, which brings content that a trace names; the fill waits for it.
func (i *image) startPrefetch(do func(context.Context)) {
	i.mu.Lock()
	i.prefetching++
	i.lastActivity = time.Now()
	i.mu.Unlock()
	i.run(func() {
		do(i.ctx)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.prefetching--
		i.lastActivity = time.Now()
	})
}

// record notes what the first machine uses, for a while, and keeps it.
func (i *image) record(known pager.Trace) {
	i.mu.Lock()
	first := !i.recordStarted
	i.recordStarted = true
	i.mu.Unlock()
	if !first {
		return
	}
	notes := pager.NewRecorder(known)
	i.setRecorder(notes)
	i.m.tasks.Go(func() {
		timer := time.NewTimer(i.m.cfg.RecordTime)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-i.m.ctx.Done():
			return
		}
		i.setRecorder(nil)
		i.saveTrace(known, notes.Stop())
	})
}

// setRecorder has all uses recorded; nil: not any more.
func (i *image) setRecorder(notes *pager.Recorder) {
	i.recording.Store(notes != nil)
	i.memory.SetRecorder(notes)
	for _, disk := range i.disks {
		disk.SetRecorder(notes)
	}
}

// minNewPart is how much of what is known must be new so that it is kept anew with content: each time all of that
// is read, and what comes behind what the store has already is sent.
const minNewPart = 64

// saveTrace stores a trace, if it learned anything.
func (i *image) saveTrace(known, fresh pager.Trace) {
	if len(fresh) == 0 || i.prefetch.bytes > 0 && fresh.Bytes() < known.Bytes()/minNewPart {
		return
	}
	data := append(known[:len(known):len(known)], fresh...).Encode()
	err := durable.WriteFile(i.tracePath(), data, 0o600)
	if err == nil && i.m.cfg.Prefetches != nil {
		err = i.publishTrace(data)
	}
	if err != nil {
		i.m.cfg.Log.Warn("trace of a snapshot not kept", "snapshot", i.snap.Ref, "err", err)
		return
	}
	i.m.cfg.Log.Info(
		"trace of a snapshot kept",
		"snapshot",
		i.snap.Ref,
		"bytes",
		fresh.Bytes(),
		"before",
		known.Bytes(),
	)
}

// publishTrace keeps a trace where all hosts find it, with what it names first of the memory.
func (i *image) publishTrace(data []byte) error {
	trace, err := pager.DecodeTrace(data) // as others will read it
	if err != nil {
		return err
	}
	pages, err := i.workingSet(trace)
	if err != nil {
		return err
	}
	err = i.m.cfg.Prefetches.Save(i.m.ctx, i.snap.Origin(), data, pages)
	if pages != nil {
		err = errors.Join(err, pages.Close())
	}
	return err
}

// memoryContent is the memory as monitors map it. A read that fails fails the machines.
type memoryContent struct {
	*pager.File
	i *image
}

// Recording implements fusefs.Mapped: what is brought in around a page is not seen to be used, and would be missing next time.
func (s memoryContent) Recording() bool { return s.i.recording.Load() }

func (s memoryContent) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := s.File.ReadAt(ctx, p, off)
	if err != nil && ctx.Err() == nil {
		s.i.fail(fmt.Errorf("memory: %w", err))
	}
	return err
}
