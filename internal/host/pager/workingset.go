package pager

import (
	"context"
	"io"
	"sort"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// WorkingSet is the part of a trace in one file. Its ranges form a sequence that can be stored in one piece.
type WorkingSet struct {
	ranges []chunkstore.Range
	ends   []int64 // ends of the ranges in the sequence, in bytes
}

// SplitWorkingSet splits a trace into a working set and the rest. The working set has the first ranges in
// file, which has size bytes, up to limit bytes, a multiple of the page size. The rest includes the ranges of
// other files.
func (t Trace) SplitWorkingSet(file string, size, limit int64) (c WorkingSet, rest Trace) {
	for _, r := range t {
		if r.File != file {
			rest = append(rest, r)
			continue
		}
		r.Length = min(r.Length, size-r.Offset)
		if r.Length <= 0 {
			continue
		}
		if n := min(r.Length, limit-c.Bytes()); n > 0 {
			c.ranges = append(c.ranges, chunkstore.Range{File: file, Offset: r.Offset, Length: n})
			c.ends = append(c.ends, c.Bytes()+n)
			r.Offset, r.Length = r.Offset+n, r.Length-n
		}
		if r.Length > 0 {
			rest = append(rest, r)
		}
	}
	return c, rest
}

// Bytes returns the size of the working set.
func (c WorkingSet) Bytes() int64 {
	if len(c.ends) == 0 {
		return 0
	}
	return c.ends[len(c.ends)-1]
}

// Scatter passes the parts of data to put, with their offsets in the file. data starts at off in the sequence.
func (c WorkingSet) Scatter(off int64, data []byte, put func(off int64, data []byte)) {
	first := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > off })
	for i := first; i < len(c.ends) && len(data) > 0; i++ {
		inside := off - (c.ends[i] - c.ranges[i].Length)
		n := min(int64(len(data)), c.ranges[i].Length-inside)
		put(c.ranges[i].Offset+inside, data[:n])
		off, data = off+n, data[n:]
	}
}

// workingSetRead is how much of a file is read at once for a working set.
const workingSetRead = 1 << 20

// WriteWorkingSet writes the content of the working set c to w. That is not recorded as a use.
func (f *File) WriteWorkingSet(ctx context.Context, c WorkingSet, w io.Writer) error {
	buf := make([]byte, workingSetRead)
	for _, r := range c.ranges {
		for done := int64(0); done < r.Length; {
			data := buf[:min(workingSetRead, r.Length-done)]
			if err := f.ReadAhead(ctx, data, r.Offset+done); err != nil {
				return err
			}
			if _, err := w.Write(data); err != nil {
				return err
			}
			done += int64(len(data))
		}
	}
	return nil
}
