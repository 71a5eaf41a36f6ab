package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Span is a range of pages in a process, given by address.
type Span struct{ Start, End uint64 }

// PrivatePages returns the private pages of a process between start and end. These are the
// anonymous pages that are present or swapped out. The spans are sorted, and adjacent ones are
// merged.
func PrivatePages(pid int, start, end uint64) ([]Span, error) {
	f, err := os.Open(procPath(pid, "pagemap"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	spans, err := scanPrivate(f, start, end)
	if err != nil {
		return nil, fmt.Errorf("pages of process %d: %w", pid, err)
	}
	return spans, nil
}

func scanPrivate(pagemap *os.File, start, end uint64) ([]Span, error) {
	spans, err := scanAll(pagemap, start, end)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
		return readPagemap(pagemap, start, end) // Linux before 6.7 has no PAGEMAP_SCAN
	}
	return spans, err
}

// regionsAtOnce is the number of regions requested by one PAGEMAP_SCAN call.
const regionsAtOnce = 1024

// scanAll finds the pages with PAGEMAP_SCAN.
func scanAll(pagemap *os.File, start, end uint64) ([]Span, error) {
	regions := make([]pageRegion, regionsAtOnce)
	var spans []Span
	for at := start; at < end; {
		n, walked, err := scan(int(pagemap.Fd()), at, end, regions)
		if err != nil {
			return nil, err
		}
		for _, r := range regions[:n] {
			spans = appendSpan(spans, Span{r.start, r.end})
		}
		if walked <= at {
			return nil, errors.New("kernel made no progress")
		}
		at = walked
	}
	return spans, nil
}

// Bits of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapFile    = 1 << 61
	pagemapSwapped = 1 << 62
	pagemapPresent = 1 << 63
)

// readPagemap finds the pages by reading one word per page from /proc/PID/pagemap.
func readPagemap(pagemap *os.File, start, end uint64) ([]Span, error) {
	var spans []Span
	buf := make([]byte, 64<<10)
	for at := start; at < end; {
		want := buf[:min(uint64(len(buf)), (end-at)/pageSize*8)]
		if _, err := pagemap.ReadAt(want, int64(at/pageSize)*8); err != nil {
			return nil, err
		}
		for ; len(want) > 0; want, at = want[8:], at+pageSize {
			entry := binary.NativeEndian.Uint64(want)
			if entry&(pagemapPresent|pagemapSwapped) != 0 && entry&pagemapFile == 0 {
				spans = appendSpan(spans, Span{at, at + pageSize})
			}
		}
	}
	return spans, nil
}

// appendSpan appends s to spans, which are sorted. When a scan is continued, the kernel may report
// pages again that it has reported before, so appendSpan drops what overlaps the last span.
func appendSpan(spans []Span, s Span) []Span {
	n := len(spans)
	if n > 0 {
		s.Start = max(s.Start, spans[n-1].End)
	}
	if s.Start >= s.End {
		return spans
	}
	if n > 0 && spans[n-1].End == s.Start {
		spans[n-1].End = s.End
		return spans
	}
	return append(spans, s)
}
