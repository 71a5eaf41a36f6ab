package checkpoint

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// gap is how many pages of zeros between two runs of content are rather mapped with them than apart: an area
// costs more than the zeros, which are holes in the file.
const gap = 64 * pageSize

// Save writes the content of the captured process into an empty file dst and answers the image that goes with
// it. It is for a process that was made with none. Nothing is made durable: no image outlives its boot on its host.
func (c *Capture) Save(dst *os.File) (Checkpoint, error) {
	im := c.Checkpoint
	w := pageWriter{dst: dst, end: im.Bytes, spans: c.spans, pages: c.pages}
	im.VMAs = nil
	for _, a := range c.Checkpoint.VMAs {
		if err := w.writeVMA(a); err != nil {
			return Checkpoint{}, fmt.Errorf("save the content of a process: %w", err)
		}
	}
	im.VMAs, im.Bytes = w.areas, w.end
	if err := dst.Truncate(im.Bytes); err != nil {
		return Checkpoint{}, fmt.Errorf("save the content of a process: %w", err)
	}
	return im, im.Validate()
}

// pageWriter lays content into a file.
type pageWriter struct {
	dst   *os.File
	end   int64 // of the file
	spans []Span
	pages [][]byte // of what is left
	areas []VMA
}

// writeVMA writes what belongs to an area, cut where content that is new begins and ends.
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

// nextRun answers the next run of new content at or behind at, near ones taken together; from == to: none.
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

// addVMA appends a piece of an area; pieces of stored content that follow each other in memory and file are one.
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

// SaveDelta writes what differs from the content that the process was made with, and answers where that lies.
func (c *Capture) SaveDelta(w io.Writer) ([]Span, error) {
	for _, p := range c.pages {
		if _, err := w.Write(p); err != nil {
			return nil, fmt.Errorf("save the content of a process: %w", err)
		}
	}
	return c.spans, nil
}

// MapDelta makes what SaveOver wrote into f usable as Plan.Over with that image, without a copy of its own: the kernel
// takes it from where the file is in memory. The capture is closed after its use; f may be closed before.
func MapDelta(f *os.File, im *Checkpoint, spans []Span) (*Capture, error) {
	bytes, err := DeltaBytes(spans)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != bytes {
		return nil, fmt.Errorf("content of a process: %s has %d bytes, want %d", f.Name(), st.Size(), bytes)
	}
	c := &Capture{Checkpoint: *im, spans: spans}
	if bytes == 0 {
		return c, nil
	}
	// What is there is read by the kernel alone, for which a page that cannot be read is an error and no signal.
	if c.mapped, err = unix.Mmap(int(f.Fd()), 0, int(bytes), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("content of a process: %w", err)
	}
	rest := c.mapped
	for _, s := range spans {
		n := s.End - s.Start
		c.pages, rest = append(c.pages, rest[:n]), rest[n:]
	}
	return c, nil
}

// Close gives back what MapOver mapped. Nothing of the capture may be used any more.
func (c *Capture) Close() error {
	mapped := c.mapped
	c.mapped, c.pages = nil, nil
	if mapped == nil {
		return nil
	}
	return unix.Munmap(mapped)
}

// DeltaBytes answers how much SaveOver wrote with these spans, and refuses those that it cannot have answered.
func DeltaBytes(spans []Span) (int64, error) {
	var bytes uint64
	at := uint64(minAddress)
	for _, s := range spans {
		if s.Start < at || s.End <= s.Start || s.End > maxAddress || s.Start%pageSize != 0 || s.End%pageSize != 0 {
			return 0, fmt.Errorf("content at %x-%x is out of order or range", s.Start, s.End)
		}
		bytes, at = bytes+s.End-s.Start, s.End
	}
	if bytes > maxDelta {
		return 0, fmt.Errorf("%d bytes of content, at most %d", bytes, uint64(maxDelta))
	}
	return int64(bytes), nil
}

// maxDelta bounds what is mapped at once.
const maxDelta = 1 << 30
