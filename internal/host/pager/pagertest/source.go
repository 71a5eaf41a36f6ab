// Package pagertest has a chunkstore.Source in memory that can be slow, fail, block, and count its calls.
//
// It is for tests and for the benchmark of the shipped program, so it does not import testing.
package pagertest

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// Source is a chunkstore.Source in memory. All methods may be called concurrently.
type Source struct {
	files map[string][]byte

	mu           sync.Mutex
	delay        time.Duration
	fail         func(file string, off int64) error
	blocked      chan struct{} // reads wait until it is closed; nil if they do not wait
	fetchedBytes int64         // bytes of frames, each counted once
	reads        int
	prefetched   []chunkstore.Range
	frames       map[string]map[int64]bool

	localCopy          *os.File
	localFrom, localTo int64
}

var _ chunkstore.Source = (*Source)(nil)

// New makes a source of files, which it keeps.
func New(files map[string][]byte) *Source {
	return &Source{files: files, frames: map[string]map[int64]bool{}}
}

// SetDelay sets how long a read of frames takes that were not read before.
func (s *Source) SetDelay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// SetFail sets a function that returns the error of each read; nil: no read fails.
func (s *Source) SetFail(fail func(file string, off int64) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// Block makes reads wait until unblock is called or their context ends.
func (s *Source) Block() (unblock func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stand := make(chan struct{})
	s.blocked = stand
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		close(stand)
		if s.blocked == stand {
			s.blocked = nil
		}
	})
}

// Fetched returns how many bytes were read, in whole frames, and how many reads there were.
func (s *Source) Fetched() (bytes int64, reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetchedBytes, s.reads
}

// Prefetched returns the ranges passed to Prefetch.
func (s *Source) Prefetched() []chunkstore.Range {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]chunkstore.Range(nil), s.prefetched...)
}

// Size implements chunkstore.Source.
func (s *Source) Size(file string) (int64, bool) {
	data, ok := s.files[file]
	return int64(len(data)), ok
}

// ReadAt implements chunkstore.Source.
func (s *Source) ReadAt(ctx context.Context, file string, p []byte, off int64) error {
	s.mu.Lock()
	delay, fail, stand := s.delay, s.fail, s.blocked
	if !s.count(file, off, int64(len(p))) {
		delay = 0
	}
	s.mu.Unlock()
	if stand != nil {
		select {
		case <-stand:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if fail != nil {
		if err := fail(file, off); err != nil {
			return err
		}
	}
	copy(p, s.files[file][off:])
	return nil
}

// count counts a read and reports whether one of its frames is new. The caller holds s.mu.
func (s *Source) count(file string, off, length int64) (fresh bool) {
	s.reads++
	seen := s.frames[file]
	if seen == nil {
		seen = map[int64]bool{}
		s.frames[file] = seen
	}
	for frame := off / chunkstore.FrameSize; frame*chunkstore.FrameSize < off+length; frame++ {
		if !seen[frame] {
			seen[frame], fresh = true, true
			s.fetchedBytes += chunkstore.FrameSize
		}
	}
	return fresh
}

// RunAt implements chunkstore.Source.
func (s *Source) RunAt(file string, off int64) (length int64, zero bool) {
	data := s.files[file]
	if off >= int64(len(data)) {
		return 0, false
	}
	at := off - off%chunkstore.PageSize
	zero = isZeroPage(data, at)
	for at += chunkstore.PageSize; at < int64(len(data)) && isZeroPage(data, at) == zero; {
		at += chunkstore.PageSize
	}
	return min(at, int64(len(data))) - off, zero
}

func isZeroPage(data []byte, at int64) bool {
	for _, b := range data[at:min(at+chunkstore.PageSize, int64(len(data)))] {
		if b != 0 {
			return false
		}
	}
	return true
}

// SetLocalCopy makes LocalCopy return here for every file, at offsets in [from, to). Initially there is none.
func (s *Source) SetLocalCopy(here *os.File, from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.localCopy, s.localFrom, s.localTo = here, from, to
}

// LocalCopy implements chunkstore.Source.
func (s *Source) LocalCopy(_ string, off int64) (*os.File, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if off < s.localFrom || off >= s.localTo {
		return nil, 0
	}
	return s.localCopy, s.localTo - off
}

// Prefetch implements chunkstore.Source. It only records the ranges.
func (s *Source) Prefetch(_ context.Context, ranges []chunkstore.Range) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefetched = append(s.prefetched, ranges...)
	return nil
}

// Pattern returns size bytes in which all pages differ. Pages for which hole is true are zero.
func Pattern(size int, hole func(page int) bool) []byte {
	data := make([]byte, size)
	for at := 0; at < size; at += 8 {
		if page := at / chunkstore.PageSize; hole == nil || !hole(page) {
			for i := range 8 {
				data[at+i] = byte((at>>3 + 1) >> (8 * i))
			}
		}
	}
	return data
}
