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

// image is a snapshot that is remote-backed, or was when its current machines started. It holds a reference
// to the snapshot.
type image struct {
	m        *Manager
	snap     snapshot.Snapshot
	source   chunkstore.Source
	memory   *pager.File
	disks    []*pager.File // in the order of the snapshot's disks
	mounted  *fusefs.File  // the memory
	populate sync.Once

	ctx    context.Context // of the tasks that read content; close cancels it
	cancel context.CancelCauseFunc
	work   sync.WaitGroup // the tasks; close waits for them

	prefetch   *PrefetchLoader
	urgent     chan struct{} // closed when a caller waits for the whole snapshot
	urgentOnce sync.Once
	localDone  chan struct{} // closed when the snapshot is local

	recording atomic.Bool // a Recorder is set

	mu            sync.Mutex
	users         map[*attachment]bool
	prefetching   int           // running prefetches
	lastActivity  time.Time     // when the last machine started, or its prefetch ended
	recordStarted bool          // a recording has started
	attempt       chan struct{} // closed when the current hydration attempt ends
	attemptErr    error         // of the last attempt
	completed     bool          // Attach hydrates the disks of new machines
}

func newImage(
	m *Manager,
	fs *fusefs.FS,
	snap snapshot.Snapshot,
	source chunkstore.Source,
	loader *PrefetchLoader,
) (_ *image, err error) {
	name, err := memoryName(snap.Manifest)
	if err != nil {
		return nil, err
	}
	i := &image{
		m: m, snap: snap, source: source, prefetch: loader, urgent: make(chan struct{}), localDone: make(chan struct{}),
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
	i.mounted, err = fs.Add(m.ctx, strings.ReplaceAll(string(snap.Ref), "/", "~"), memoryContent{i.memory, i})
	if err != nil {
		i.cancel(err)
		return nil, err
	}
	return i, nil
}

// close releases the resources of an image that no machine uses.
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

// idle reports whether the image is unused: no machine is attached, and it is local, or its snapshot was
// deleted and has no other reference.
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

// fail fails every attached machine.
func (i *image) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for a := range i.users {
		a.fail(err)
	}
}

// maxDifference is the largest difference between a snapshot and the local base that is downloaded at once,
// memory first. It is less than a usual link transfers in one second, and machines use most of it soon.
const maxDifference = 64 << 20

// prefetchDifference downloads the difference to the local base if it is small.
func (i *image) prefetchDifference(ctx context.Context) {
	ranges := i.traceRanges()
	for _, file := range append([]*pager.File{i.memory}, i.disks...) {
		differ, all := file.RemoteRanges(maxDifference)
		if !all {
			return
		}
		ranges = append(ranges, differ...)
	}
	_ = i.source.Prefetch(ctx, ranges) // a read that needs the content tries again and reports the error
}

// traceRanges returns the ranges of the trace that exist and do not arrive with the working set.
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

// run runs a task that reads content until it ends or close cancels it.
func (i *image) run(do func()) {
	i.work.Add(1)
	i.m.tasks.Go(func() {
		defer i.work.Done()
		do()
	})
}

// startPrefetch runs do, which downloads content named in a trace; hydration waits for it.
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

// record records what the first machine uses for a while, and saves the trace.
func (i *image) record(known pager.Trace) {
	i.mu.Lock()
	first := !i.recordStarted
	i.recordStarted = true
	i.mu.Unlock()
	if !first {
		return
	}
	recorder := pager.NewRecorder(known)
	i.setRecorder(recorder)
	i.m.tasks.Go(func() {
		timer := time.NewTimer(i.m.cfg.RecordTime)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-i.m.ctx.Done():
			return
		}
		i.setRecorder(nil)
		i.saveTrace(known, recorder.Stop())
	})
}

// setRecorder sets the recorder of all files; nil ends the recording.
func (i *image) setRecorder(recorder *pager.Recorder) {
	i.recording.Store(recorder != nil)
	i.memory.SetRecorder(recorder)
	for _, disk := range i.disks {
		disk.SetRecorder(recorder)
	}
}

// minNewPart is one over the part of a known trace that must be new so that the trace is saved again with its
// working set: each save reads all of that content and uploads what is not in the store yet.
const minNewPart = 64

// saveTrace saves a trace if it has new ranges.
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
		i.m.cfg.Log.Warn("trace of a snapshot not saved", "snapshot", i.snap.Ref, "err", err)
		return
	}
	i.m.cfg.Log.Info(
		"trace of a snapshot saved",
		"snapshot",
		i.snap.Ref,
		"bytes",
		fresh.Bytes(),
		"before",
		known.Bytes(),
	)
}

// publishTrace saves a trace and its working set in the store that all hosts share.
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

// memoryContent is the memory as monitors map it. A failed read fails the machines.
type memoryContent struct {
	*pager.File
	i *image
}

// Recording implements fusefs.Mapped. While a trace is recorded, nothing is read around a page: use of such
// content would not be recorded, and it would be missing from the trace.
func (s memoryContent) Recording() bool { return s.i.recording.Load() }

// ReadAt implements fusefs.Content.
func (s memoryContent) ReadAt(ctx context.Context, p []byte, off int64) error {
	err := s.File.ReadAt(ctx, p, off)
	if err != nil && ctx.Err() == nil {
		s.i.fail(fmt.Errorf("memory: %w", err))
	}
	return err
}
