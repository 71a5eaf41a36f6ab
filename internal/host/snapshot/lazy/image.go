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
	m      *Manager
	snap   snapshot.Snapshot
	source chunkstore.Source
	memory *pager.File
	disks  []*pager.File // in the order of the snapshot's
	shown  *fusefs.File  // the memory
	warm   sync.Once

	ctx    context.Context // of what brings content, which free ends
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // and waits for

	lesson  *Soon
	hurry   chan struct{} // closed when somebody waits for all of it
	hurried sync.Once
	whole   chan struct{} // closed when all of it is here

	noting atomic.Bool // what machines use is recorded

	mu        sync.Mutex
	users     map[*attachment]bool
	replays   int           // under way
	quiet     time.Time     // when the last machine began, or its replay ended
	recorded  bool          // a recording is under way, or was
	attempt   chan struct{} // closed when the fill under way ended
	fillErr   error         // of the last fill that ended
	completed bool          // disks of machines are made whole by whoever attaches
}

func newImage(
	m *Manager,
	fs *fusefs.FS,
	snap snapshot.Snapshot,
	source chunkstore.Source,
	of *Soon,
) (_ *image, err error) {
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, err
	}
	i := &image{
		m: m, snap: snap, source: source, lesson: of, hurry: make(chan struct{}), whole: make(chan struct{}),
		users: map[*attachment]bool{}, quiet: time.Now(), attempt: make(chan struct{}),
	}
	if i.memory, err = pager.NewFile(source, name, m.cfg.Limit); err != nil {
		return nil, err
	}
	for _, name := range snapshot.DiskFiles(snap.Data) {
		disk, err := pager.NewFile(source, name, m.cfg.Limit)
		if err != nil {
			return nil, err
		}
		i.disks = append(i.disks, disk)
	}
	i.ctx, i.cancel = context.WithCancelCause(m.ctx)
	if i.shown, err = fs.Add(m.ctx, strings.ReplaceAll(string(snap.Ref), "/", "~"), shownMemory{i.memory, i}); err != nil {
		i.cancel(err)
		return nil, err
	}
	return i, nil
}

// free ends what an image has. No machine uses it.
func (i *image) free() error {
	i.cancel(errLetGo)
	i.lesson.Close()
	i.work.Wait()
	i.shown.Remove()
	err := i.memory.Close()
	for _, disk := range i.disks {
		err = errors.Join(err, disk.Close())
	}
	return errors.Join(err, end(i.source), i.m.cfg.Store.Release(i.snap.Ref))
}

// idle says that nobody needs the image any more: it is whole, or its snapshot was deleted and nobody but it holds that.
func (i *image) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.whole:
		return len(i.users) == 0
	default:
		return len(i.users) == 0 && !i.m.cfg.Store.Needed(i.snap.Ref, 1)
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

// maxAhead is how much a snapshot may differ from what is here so that all of the difference comes at once, memory
// first: it is less than what one second of a usual line carries, and machines use most of it soon.
const maxAhead = 64 << 20

// ahead brings the difference, if it is small.
func (i *image) ahead(ctx context.Context) {
	ranges := i.pieces()
	for _, file := range append([]*pager.File{i.memory}, i.disks...) {
		differ, all := file.Apart(maxAhead)
		if !all {
			return
		}
		ranges = append(ranges, differ...)
	}
	_ = i.source.Prefetch(ctx, ranges) // who needs it asks for it again, and is told why it does not come
}

// pieces is what the trace names of the files that there are and does not come with it.
func (i *image) pieces() []chunkstore.Range {
	var known []chunkstore.Range
	for _, r := range i.lesson.rest {
		if size, ok := i.source.Size(r.File); ok && r.Offset < size {
			r.Length = min(r.Length, size-r.Offset)
			known = append(known, r)
		}
	}
	return known
}

func (i *image) tracePath() string { return filepath.Join(i.snap.Dir(), traceName) }

// goes runs what brings content until it ends, or free ends it.
func (i *image) goes(do func()) {
	i.work.Add(1)
	i.m.work.Go(func() {
		defer i.work.Done()
		do()
	})
}

// replay runs do, which brings content that a trace names; the fill waits for it.
func (i *image) replay(do func(context.Context)) {
	i.mu.Lock()
	i.replays++
	i.quiet = time.Now()
	i.mu.Unlock()
	i.goes(func() {
		do(i.ctx)
		i.mu.Lock()
		defer i.mu.Unlock()
		i.replays--
		i.quiet = time.Now()
	})
}

// record notes what the first machine uses, for a while, and keeps it.
func (i *image) record(known pager.Trace) {
	i.mu.Lock()
	first := !i.recorded
	i.recorded = true
	i.mu.Unlock()
	if !first {
		return
	}
	notes := pager.NewRecorder(known)
	i.note(notes)
	i.m.work.Go(func() {
		timer := time.NewTimer(i.m.cfg.Record)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-i.m.ctx.Done():
			return
		}
		i.note(nil)
		i.keep(known, notes.End())
	})
}

// note has all uses recorded; nil: not any more.
func (i *image) note(notes *pager.Recorder) {
	i.noting.Store(notes != nil)
	i.memory.Record(notes)
	for _, disk := range i.disks {
		disk.Record(notes)
	}
}

// worthKeeping is how much of what is known must be new so that it is kept anew with content: each time all of that
// is read, and what comes behind what the store has already is sent.
const worthKeeping = 64

// keep stores a trace, if it learned anything.
func (i *image) keep(known, fresh pager.Trace) {
	if len(fresh) == 0 || i.lesson.bytes > 0 && fresh.Bytes() < known.Bytes()/worthKeeping {
		return
	}
	data := append(known[:len(known):len(known)], fresh...).Encode()
	err := durable.WriteFile(i.tracePath(), data, 0o600)
	if err == nil && i.m.cfg.Traces != nil {
		err = i.send(data)
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

// send keeps a trace where all hosts find it, with what it names first of the memory.
func (i *image) send(data []byte) error {
	trace, err := pager.DecodeTrace(data) // as others will read it
	if err != nil {
		return err
	}
	pages, err := i.carry(trace)
	if err != nil {
		return err
	}
	err = i.m.cfg.Traces.Save(i.m.ctx, i.snap.Origin(), data, pages)
	if pages != nil {
		err = errors.Join(err, pages.Close())
	}
	return err
}

// shownMemory is the memory as monitors map it. A read that fails fails the machines.
type shownMemory struct {
	*pager.File
	i *image
}

// Alone implements fusefs.Mapped: what is brought in around a page is not seen to be used, and would be missing next time.
func (s shownMemory) Alone() bool { return s.i.noting.Load() }

func (s shownMemory) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := s.File.ReadAt(ctx, p, off)
	if err != nil && ctx.Err() == nil {
		s.i.fail(fmt.Errorf("memory: %w", err))
	}
	return err
}
