package stream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/chunk"
	"github.com/pandastack/pandastack/internal/durable"
	"github.com/pandastack/pandastack/internal/pager"
	"github.com/pandastack/pandastack/internal/pager/view"
	"github.com/pandastack/pandastack/internal/snapshot"
)

// image is one snapshot that streams, or that machines still use which began so. It holds the snapshot.
type image struct {
	m      *Manager
	snap   snapshot.Snapshot
	source chunk.Source
	memory *pager.File
	disks  []*pager.File // in the order of the snapshot's
	shown  *view.File    // the memory
	warm   sync.Once

	learned chan struct{} // closed when trace is known
	trace   pager.Trace
	hurry   chan struct{} // closed when somebody waits for all of it
	hurried sync.Once
	whole   chan struct{} // closed when all of it is here

	mu        sync.Mutex
	users     map[*attachment]bool
	replays   int           // under way
	quiet     time.Time     // when the last machine began, or its replay ended
	recorded  bool          // a recording is under way, or was
	attempt   chan struct{} // closed when the fill under way ended
	fillErr   error         // of the last fill that ended
	completed bool          // disks of machines are made whole by whoever attaches
}

func newImage(m *Manager, fs *view.FS, snap snapshot.Snapshot, source chunk.Source) (_ *image, err error) {
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, err
	}
	i := &image{
		m: m, snap: snap, source: source, learned: make(chan struct{}), hurry: make(chan struct{}), whole: make(chan struct{}),
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
	i.shown, err = fs.Add(m.ctx, strings.ReplaceAll(string(snap.Ref), "/", "~"), shownMemory{i.memory, i})
	return i, err
}

// free ends what an image has. No machine uses it.
func (i *image) free() error {
	i.shown.Remove()
	err := i.memory.Close()
	for _, disk := range i.disks {
		err = errors.Join(err, disk.Close())
	}
	return errors.Join(err, end(i.source), i.m.cfg.Store.Release(i.snap.Ref))
}

// idle says that nobody needs the image any more.
func (i *image) idle() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.whole:
		return len(i.users) == 0
	default:
		return false
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

// traceLimit bounds how long a start may wait for a trace that it could do without.
const traceLimit = time.Second

// learn finds out what machines will use: beside the snapshot, else where all hosts keep it.
func (i *image) learn(ctx context.Context) {
	defer close(i.learned)
	ctx, cancel := context.WithTimeout(ctx, traceLimit)
	defer cancel()
	data, err := os.ReadFile(i.tracePath())
	if errors.Is(err, os.ErrNotExist) && i.m.cfg.Traces != nil {
		data, err = i.m.cfg.Traces.Load(ctx, i.snap.Origin())
	}
	if err == nil && len(data) > 0 {
		i.trace, err = pager.DecodeTrace(data)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		i.m.cfg.Log.Warn("trace of a snapshot not used", "snapshot", i.snap.Ref, "err", err)
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

// pieces is what the trace names of the files that there are.
func (i *image) pieces() []chunk.Range {
	var known []chunk.Range
	for _, r := range i.trace {
		if size, ok := i.source.Size(r.File); ok && r.Offset < size {
			r.Length = min(r.Length, size-r.Offset)
			known = append(known, r)
		}
	}
	return known
}

func (i *image) tracePath() string { return filepath.Join(i.snap.Dir(), traceName) }

// known waits for the trace.
func (i *image) known(ctx context.Context) (pager.Trace, error) {
	select {
	case <-i.learned:
		return i.trace, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// replay runs do, which brings content that a trace names; the fill waits for it.
func (i *image) replay(do func(context.Context)) {
	i.mu.Lock()
	i.replays++
	i.quiet = time.Now()
	i.mu.Unlock()
	i.m.work.Go(func() {
		do(i.m.ctx)
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
	i.memory.Record(notes)
	for _, disk := range i.disks {
		disk.Record(notes)
	}
}

// keep stores a trace, if it learned anything.
func (i *image) keep(known, fresh pager.Trace) {
	if len(fresh) == 0 {
		return
	}
	data := append(known[:len(known):len(known)], fresh...).Encode()
	err := durable.WriteFile(i.tracePath(), data, 0o600)
	if err == nil && i.m.cfg.Traces != nil {
		err = i.m.cfg.Traces.Save(i.m.ctx, i.snap.Origin(), data)
	}
	if err != nil {
		i.m.cfg.Log.Warn("trace of a snapshot not kept", "snapshot", i.snap.Ref, "err", err)
		return
	}
	i.m.cfg.Log.Info("trace of a snapshot kept", "snapshot", i.snap.Ref, "bytes", fresh.Bytes(), "before", known.Bytes())
}

// shownMemory is the memory as monitors map it. A read that fails fails the machines.
type shownMemory struct {
	*pager.File
	i *image
}

func (s shownMemory) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := s.File.ReadAt(ctx, p, off)
	if err != nil && ctx.Err() == nil {
		s.i.fail(fmt.Errorf("memory: %w", err))
	}
	return err
}
