package pager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// readTimeout is the default limit of one read of remote content, including retries. A store that does not
// respond for that long counts as dead.
const readTimeout = 30 * time.Second

// maxDamagedReads is how often content that fails its verification is read: another replica may be intact.
const maxDamagedReads = 3

// File is one file of a snapshot. It is read from a Source until it is local. All methods may be called
// concurrently.
type File struct {
	name     string
	size     int64
	source   chunkstore.Source
	timeout  time.Duration
	local    atomic.Pointer[mapping]
	recorder atomic.Pointer[Recorder]

	missed atomic.Int64 // bytes that were read from the source

	mu        sync.Mutex
	fetched   bits // frames that were read from the source; guarded by mu
	readahead readahead
}

// mapping is a local file, open and mapped. Only the kernel may read mem, as the source of a copy: it returns
// an error if the disk fails, while this program would be killed. The last user unmaps it.
type mapping struct {
	file   *os.File
	mem    []byte
	mu     sync.Mutex
	users  int
	closed bool
}

// NewFile makes a File of a source's file. timeout bounds one read; 0 means 30 s.
func NewFile(source chunkstore.Source, name string, limit time.Duration) (*File, error) {
	size, ok := source.Size(name)
	if !ok {
		return nil, fmt.Errorf("file %s: not in the manifest", name)
	}
	if limit == 0 {
		limit = readTimeout
	}
	return &File{name: name, size: size, source: source, timeout: limit}, nil
}

// OpenLocal makes a File of a local file.
func OpenLocal(path string) (*File, error) {
	f := &File{name: path, timeout: readTimeout}
	if err := f.SetLocal(path); err != nil {
		return nil, err
	}
	f.size = int64(len(f.local.Load().mem))
	return f, nil
}

// Size returns the size of the file in bytes.
func (f *File) Size() int64 { return f.size }

// MissedBytes returns how many bytes were read from the source so far.
func (f *File) MissedBytes() int64 { return f.missed.Load() }

// SetRecorder makes r record every use from now on; nil ends that.
func (f *File) SetRecorder(r *Recorder) { f.recorder.Store(r) }

// IsLocal reports whether the file is completely on this host's disk.
func (f *File) IsLocal() bool { return f.local.Load() != nil }

// SetLocal makes all reads go to the file at path from now on. It must be complete and never change.
func (f *File) SetLocal(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	m, err := f.mapFile(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	if !f.local.CompareAndSwap(nil, m) {
		return m.close()
	}
	return nil
}

func (f *File) mapFile(file *os.File) (*mapping, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if f.source != nil && info.Size() != f.size || info.Size() == 0 {
		return nil, fmt.Errorf("%s has %d bytes, want %d", file.Name(), info.Size(), f.size)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", file.Name(), err)
	}
	return &mapping{file: file, mem: mem}, nil
}

// Close stops readahead and unmaps the local file once running reads have finished. The file must not be read
// afterwards.
func (f *File) Close() error {
	f.readahead.stop(&f.mu)
	if m := f.local.Load(); m != nil {
		return m.close()
	}
	return nil
}

// acquireLocal returns the local mapping for one use, or nil if the file is not local or closed.
func (f *File) acquireLocal() *mapping {
	m := f.local.Load()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.users++
	return m
}

func (m *mapping) release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users--
	return m.freeLocked()
}

func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return m.freeLocked()
}

func (m *mapping) freeLocked() error {
	if !m.closed || m.users > 0 || m.mem == nil {
		return nil
	}
	mem := m.mem
	m.mem = nil
	return errors.Join(unix.Munmap(mem), m.file.Close())
}

// RunAt is chunkstore.Source.RunAt. A file that was local from the start reports one run of content.
func (f *File) RunAt(off int64) (length int64, zero bool) {
	if f.source == nil {
		return max(0, f.size-off), false
	}
	return f.source.RunAt(f.name, off)
}

// ReadAt fills p from off on. Bytes beyond the end of the file are zero. It fails if the content does not
// arrive within the timeout, or is not what was stored.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) error {
	if excess := off + int64(len(p)) - f.size; excess > 0 {
		excess = min(excess, int64(len(p)))
		clear(p[int64(len(p))-excess:])
		if p = p[:int64(len(p))-excess]; len(p) == 0 {
			return nil
		}
	}
	f.recorder.Load().Record(f.name, off, int64(len(p)))
	if m := f.acquireLocal(); m != nil {
		_, err := m.file.ReadAt(p, off)
		return errors.Join(err, m.release())
	}
	if f.source == nil {
		return fmt.Errorf("read %s: %w", f.name, os.ErrClosed)
	}
	f.missed.Add(int64(len(p)))
	if !f.IsCached(off, int64(len(p))) {
		f.readAround(ctx, off)
	}
	return f.fetch(ctx, p, off)
}

func (f *File) fetch(ctx context.Context, p []byte, off int64) error {
	limit, cancel := context.WithTimeoutCause(
		ctx,
		f.timeout,
		fmt.Errorf("the object store did not deliver the content within %v", f.timeout),
	)
	defer cancel()
	var err error
	for range maxDamagedReads {
		if err = f.source.ReadAt(limit, f.name, p, off); err == nil {
			f.markFetched(off, int64(len(p)))
			return nil
		}
		var damaged *chunkstore.DamagedError
		if !errors.As(err, &damaged) {
			break
		}
	}
	if cause := context.Cause(limit); cause != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return fmt.Errorf("read %d bytes at %d of %s: %w", len(p), off, f.name, err)
}

// markFetched records frames that were read: they are in the host's cache.
func (f *File) markFetched(off, length int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for frame := off / chunkstore.FrameSize; frame*chunkstore.FrameSize < off+length; frame++ {
		f.fetched = f.fetched.with(frame)
	}
}

// IsCached reports whether, as far as is known, a range can be read without waiting for the store.
func (f *File) IsCached(off, length int64) bool {
	if f.IsLocal() {
		return true
	}
	for end := off + length; off < end; {
		run, zero := f.RunAt(off)
		if run <= 0 {
			return true // beyond the end
		}
		if _, near := f.source.LocalCopy(f.name, off); !zero && near > 0 {
			off += min(run, near)
			continue
		}
		if !zero && !f.wasFetched(off/chunkstore.FrameSize) {
			return false
		}
		if next := (off/chunkstore.FrameSize + 1) * chunkstore.FrameSize; !zero {
			run = min(run, next-off)
		}
		off += run
	}
	return true
}

func (f *File) wasFetched(n int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetched.has(n)
}

// ReadAhead is ReadAt for content that no machine waits for: it is not recorded as a use.
func (f *File) ReadAhead(ctx context.Context, p []byte, off int64) error {
	if m := f.acquireLocal(); m != nil {
		_, err := m.file.ReadAt(p, off)
		if releaseErr := m.release(); err == nil {
			err = releaseErr
		}
		return err
	}
	return f.fetch(ctx, p, off)
}
