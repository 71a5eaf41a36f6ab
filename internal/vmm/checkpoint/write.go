package checkpoint

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// gap is the largest run of zero pages between two runs of content that is stored along with them.
// A separate VMA costs more than the zeros, which are holes in the file.
const gap = 64 * pageSize

// Save writes the captured memory to the empty file dst and returns the checkpoint that refers to
// it. It is for a process that was not restored from a checkpoint itself. The file is not synced,
// because no checkpoint outlives the boot of its host.
func (c *Capture) Save(dst *os.File) (Checkpoint, error) {
	cp := c.Checkpoint
	w := pageWriter{dst: dst, end: cp.Bytes, spans: c.spans, pages: c.pages}
	cp.VMAs = nil
	for _, a := range c.Checkpoint.VMAs {
		if err := w.writeVMA(a); err != nil {
			return Checkpoint{}, fmt.Errorf("write the checkpoint's pages: %w", err)
		}
	}
	cp.VMAs, cp.Bytes = w.areas, w.end
	if err := dst.Truncate(cp.Bytes); err != nil {
		return Checkpoint{}, fmt.Errorf("write the checkpoint's pages: %w", err)
	}
	return cp, cp.Validate()
}

// pageWriter writes pages to a pages file.
type pageWriter struct {
	dst   *os.File
	end   int64 // size of the file
	spans []Span
	pages [][]byte // not written yet
	areas []VMA
}

// writeVMA writes the pages of a VMA and splits it where new content starts and ends.
func (w *pageWriter) writeVMA(a VMA) error {
	at := a.Start
	for at < a.End {
		from, to := w.nextRun(at, a)
		if from > at {
			w.addVMA(a, at, from, a.Backing, a.Offset+int64(at-a.Start))
		}
		if from == to {
			return nil
		}
		offset := w.end
		if a.Backing == Stored {
			offset = a.Offset + int64(from-a.Start)
		} else {
			w.end += int64(to - from)
		}
		if err := w.writePages(from, to, offset); err != nil {
			return err
		}
		w.addVMA(a, from, to, Stored, offset)
		at = to
	}
	return nil
}

// nextRun returns the next run of new content at or after at, with short gaps included. It returns
// from == to if there is none.
func (w *pageWriter) nextRun(at uint64, a VMA) (from, to uint64) {
	if len(w.spans) == 0 || w.spans[0].Start >= a.End {
		return a.End, a.End
	}
	from, to = max(at, w.spans[0].Start), w.spans[0].End
	for _, s := range w.spans[1:] {
		if s.Start >= a.End || s.Start > to+gap || a.Backing == Mapped {
			break
		}
		to = s.End
	}
	return from, min(to, a.End)
}

func (w *pageWriter) writePages(from, to uint64, offset int64) error {
	for len(w.spans) > 0 && w.spans[0].Start < to {
		if _, err := w.dst.WriteAt(w.pages[0], offset+int64(w.spans[0].Start-from)); err != nil {
			return err
		}
		w.spans, w.pages = w.spans[1:], w.pages[1:]
	}
	return nil
}

// addVMA appends a part of a VMA. Stored parts that are adjacent both in memory and in the file are
// merged.
func (w *pageWriter) addVMA(a VMA, from, to uint64, backing Backing, offset int64) {
	piece := VMA{Start: from, End: to, Prot: a.Prot, Backing: backing, Stack: a.Stack}
	switch backing {
	case Mapped:
		piece.File = a.File
		piece.Offset = offset
	case Stored, External:
		piece.Offset = offset
	}
	if n := len(w.areas); n > 0 && backing == Stored {
		last := &w.areas[n-1]
		if last.Backing == Stored && last.End == from && last.Prot == a.Prot && last.Stack == a.Stack &&
			last.Offset+int64(last.End-last.Start) == offset {
			last.End = to
			return
		}
	}
	w.areas = append(w.areas, piece)
}

// SaveDelta writes the pages that differ from the pages file of the process, and returns their
// spans.
func (c *Capture) SaveDelta(w io.Writer) ([]Span, error) {
	for _, p := range c.pages {
		if _, err := w.Write(p); err != nil {
			return nil, fmt.Errorf("write the checkpoint's pages: %w", err)
		}
	}
	return c.spans, nil
}

// MapDelta maps a file written by SaveDelta for use as Plan.Delta with the same checkpoint. It
// copies nothing: the kernel reads the pages from the page cache. The caller closes the capture
// after use; f may be closed before.
func MapDelta(f *os.File, cp *Checkpoint, spans []Span) (*Capture, error) {
	bytes, err := DeltaBytes(spans)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != bytes {
		return nil, fmt.Errorf("checkpoint delta %s has %d bytes, want %d", f.Name(), st.Size(), bytes)
	}
	c := &Capture{Checkpoint: *cp, spans: spans}
	if bytes == 0 {
		return c, nil
	}
	// Only the kernel reads this memory. An unreadable page is an error for it, where a process
	// would get SIGBUS.
	if c.mapped, err = unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ,
		unix.MAP_PRIVATE|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("map checkpoint delta: %w", err)
	}
	rest := c.mapped
	for _, s := range spans {
		n := s.End - s.Start
		c.pages, rest = append(c.pages, rest[:n]), rest[n:]
	}
	return c, nil
}

// Close unmaps what MapDelta mapped. The capture must not be used afterwards.
func (c *Capture) Close() error {
	mapped := c.mapped
	c.mapped, c.pages = nil, nil
	if mapped == nil {
		return nil
	}
	return unix.Munmap(mapped)
}

// DeltaBytes returns how many bytes SaveDelta wrote for these spans. It returns an error for spans
// that SaveDelta cannot have returned.
func DeltaBytes(spans []Span) (int64, error) {
	var bytes uint64
	at := uint64(minAddress)
	for _, s := range spans {
		if s.Start < at || s.End <= s.Start || s.End > maxAddress || s.Start%pageSize != 0 || s.End%pageSize != 0 {
			return 0, fmt.Errorf("checkpoint span %x-%x is not sorted, not aligned or out of range", s.Start, s.End)
		}
		bytes, at = bytes+s.End-s.Start, s.End
	}
	if bytes > maxDelta {
		return 0, fmt.Errorf("%d bytes of pages, at most %d are allowed", bytes, uint64(maxDelta))
	}
	return int64(bytes), nil
}

// maxDelta bounds the size of one mapping.
const maxDelta = 1 << 30
