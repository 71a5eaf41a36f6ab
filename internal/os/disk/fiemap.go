package disk

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Run is a range of a file, in bytes.
type Run struct{ From, To int64 }

// extentUnreliable are the flags of extents whose physical offset says nothing about their content
// (linux/fiemap.h).
const extentUnreliable = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800

// SharedRuns returns the ranges where two files have the same disk blocks at the same offsets. The ranges are
// in order. Their content is equal and need not be read. The result is a hint: it is empty where the file
// system does not report its extents. Neither file may be written meanwhile; earlier writes become durable.
func SharedRuns(a, b *os.File) ([]Run, error) {
	one, err := a.Stat()
	if err != nil {
		return nil, err
	}
	other, err := b.Stat()
	if err != nil {
		return nil, err
	}
	st1, ok1 := one.Sys().(*syscall.Stat_t)
	st2, ok2 := other.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 || st1.Dev != st2.Dev {
		return nil, nil
	}
	mine, err := extentsOf(a)
	if err != nil {
		return nil, err
	}
	theirs, err := extentsOf(b)
	if err != nil {
		return nil, err
	}
	var runs []Run
	for i, j := 0, 0; i < len(mine) && j < len(theirs); {
		x, y := mine[i], theirs[j]
		from, to := max(x.Logical, y.Logical), min(x.Logical+x.Length, y.Logical+y.Length)
		if from < to && (x.Flags|y.Flags)&extentUnreliable == 0 && x.Physical-x.Logical == y.Physical-y.Logical {
			runs = appendRun(runs, Run{int64(from), int64(to)})
		}
		if x.Logical+x.Length <= y.Logical+y.Length {
			i++
		} else {
			j++
		}
	}
	return runs, nil
}

// appendRun appends a run, or extends the last one if r continues it.
func appendRun(runs []Run, r Run) []Run {
	if n := len(runs) - 1; n >= 0 && runs[n].To == r.From {
		runs[n].To = r.To
		return runs
	}
	return append(runs, r)
}

// extentsOf returns the extents of a file, or none where the file system does not report them.
func extentsOf(f *os.File) ([]extent, error) {
	var all []extent
	err := eachExtent(f, func(e extent) { all = append(all, e) })
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read extents of %s: %w", f.Name(), err)
	}
	return all, nil
}
