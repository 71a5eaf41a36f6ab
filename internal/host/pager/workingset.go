package pager

import (
	"context"
	"io"
	"sort"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// WorkingSet is what of one file a trace names, one range after the other, so that it can be kept in one piece and come
// in one go.
type WorkingSet struct {
	ranges []chunkstore.Range
	ends   []int64 // of each range in the sequence, in bytes
}

// SplitWorkingSet splits a trace: up to limit bytes of what it names first of a file of size bytes, and the rest, in which
// are the other files. Limit is in whole pages.
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

// Bytes is how much it is.
func (c WorkingSet) Bytes() int64 {
	if len(c.ends) == 0 {
		return 0
	}
	return c.ends[len(c.ends)-1]
}

// Scatter gives put the parts of data, which lies at off in the sequence, with where in the file they belong.
func (c WorkingSet) Scatter(off int64, data []byte, put func(off int64, data []byte)) {
	for i := sort.Search(len(c.ends), func(i int) bool { return c.ends[i] > off }); i < len(c.ends) && len(data) > 0; i++ {
		inside := off - (c.ends[i] - c.ranges[i].Length)
		n := min(int64(len(data)), c.ranges[i].Length-inside)
		put(c.ranges[i].Offset+inside, data[:n])
		off, data = off+n, data[n:]
	}
}

// workingSetRead is how much of a file is read at once to be kept.
const workingSetRead = 1 << 20

// WriteWorkingSet writes to w what c names of the file. It is no use of it.
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
