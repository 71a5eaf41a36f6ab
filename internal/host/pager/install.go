package pager

import (
	"context"
	"errors"
	"fmt"

	"github.com/pandastack/pandastack/internal/os/uffd"
)

// zeros is the source of zeroed huge pages. It is never written.
var zeros [uffd.Huge]byte

// window is a part of a region that is installed at once, as offsets in the region.
type window struct {
	region   uffd.Region
	from, to uint64
}

func (w window) bytes() uint64 { return w.to - w.from }

// alignedWindow returns the window of the given size (a power of two) around an offset.
func alignedWindow(r uffd.Region, at, size uint64) window {
	size = max(size, r.PageSize)
	from := at &^ (size - 1)
	return window{r, from, min(from+size, r.Size)}
}

// sequential detects a monitor that touches its memory in order: each fault directly after the last window
// gets a window of twice the size.
type sequential struct {
	maxBytes uint64 // largest window, in bytes
	next     uint64 // address after the last window
	size     uint64 // size of the last window
}

func (k *sequential) window(r uffd.Region, off, size uint64) window {
	w := alignedWindow(r, off, size)
	if r.Base+off == k.next && r.PageSize == uffd.Page && k.maxBytes > size {
		w = window{r, off, min(off+min(2*k.size, k.maxBytes), r.Size)}
	}
	k.next, k.size = r.Base+w.to, w.bytes()
	return w
}

// fault resolves one fault: at once if the content is local, else after fetching it.
func (s *server) fault(ctx context.Context, at uint64) {
	r, ok := s.region(at)
	if !ok {
		s.retryLater(at, fmt.Errorf("fault at %x, outside of the monitor's registered memory", at))
		return
	}
	off := (at - r.Base) &^ (r.PageSize - 1)
	if s.isRemoved(r, off) {
		s.install(at, window{r, off, off + r.PageSize}, nil)
		return
	}
	if length, zero := s.file.RunAt(int64(r.Offset + off)); zero && length >= int64(r.PageSize) {
		w := alignedWindow(r, off, zeroFaultAround)
		w.from, w.to = off, min(w.to, off+uint64(length)&^(r.PageSize-1))
		s.install(at, w, nil)
		return
	}
	w := s.sequential.window(r, off, uint64(s.opt.FaultAround))
	if m := s.file.acquireLocal(); m != nil {
		s.file.recorder.Load().Record(s.file.name, int64(r.Offset+w.from), int64(w.bytes()))
		s.install(at, w, m.mem[r.Offset+w.from:r.Offset+w.to])
		if err := m.release(); err != nil {
			s.retryLater(at, err)
		}
		return
	}
	s.fetch(ctx, at, w)
}

// isRemoved reports whether the monitor removed a page.
func (s *server) isRemoved(r uffd.Region, off uint64) bool {
	s.installMu.RLock()
	defer s.installMu.RUnlock()
	return s.removed[r.Base].has(int64(off / r.PageSize))
}

// fetch fetches a window and installs it. If the window is being fetched already, that fetch also resolves
// this fault.
func (s *server) fetch(ctx context.Context, at uint64, w window) {
	key := w.region.Base + w.from
	s.mu.Lock()
	busy := s.fetching[key]
	s.fetching[key] = true
	s.mu.Unlock()
	if busy {
		return
	}
	s.work.Go(func() {
		s.slots <- struct{}{}
		defer func() { <-s.slots }()
		data := make([]byte, w.bytes())
		err := s.file.ReadAt(ctx, data, int64(w.region.Offset+w.from))
		s.mu.Lock()
		delete(s.fetching, key)
		s.mu.Unlock()
		switch {
		case err == nil:
			s.install(at, w, data)
		case ctx.Err() == nil:
			s.retryLater(at, err)
		}
	})
}

// install installs a window with data, or zeros if data is nil. Removed pages become zero, and present pages
// stay. The loop tries again if the window cannot be installed now.
func (s *server) install(at uint64, w window, data []byte) {
	s.installMu.RLock()
	defer s.installMu.RUnlock()
	removed := s.removed[w.region.Base]
	page := w.region.PageSize
	for from := w.from; from < w.to; {
		blank := removed.has(int64(from / page))
		to := from + page
		for len(removed) > 0 && to < w.to && removed.has(int64(to/page)) == blank {
			to += page
		}
		if len(removed) == 0 {
			to = w.to
		}
		var src []byte
		if data != nil && !blank {
			src = data[from-w.from : to-w.from]
		}
		err := s.installRange(w.region, from, to, src)
		switch {
		case errors.Is(err, uffd.ErrAgain):
			s.retryLater(at, nil)
			return
		case errors.Is(err, uffd.ErrGone):
			return // unmapped since, or the monitor has ended, which its socket reports
		case err != nil:
			s.retryLater(at, err)
			return
		}
		from = to
	}
}

// installRange installs from..to of a region with src, or zeros if src is nil. Present pages stay.
func (s *server) installRange(r uffd.Region, from, to uint64, src []byte) error {
	for at := from; at < to; {
		var n int64
		var err error
		switch {
		case src != nil:
			n, err = s.fd.Copy(r.Base+at, src[at-from:])
		case r.PageSize == uffd.Huge:
			n, err = s.fd.Copy(r.Base+at, zeros[:])
		default:
			n, err = s.fd.Zero(r.Base+at, to-at)
		}
		switch {
		case errors.Is(err, uffd.ErrExists):
			// A thread may have faulted just before the page was installed.
			if err := s.fd.Wake(r.Base+at, r.PageSize); err != nil {
				return err
			}
			at += r.PageSize
		case err != nil:
			return fmt.Errorf("install %d bytes at %d: %w", to-at, r.Offset+at, err)
		default:
			at += uint64(n)
		}
	}
	return nil
}
