package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Span is a run of pages of a process, by address.
type Span struct{ Start, End uint64 }

// PrivatePages answers the pages of a process from start to end that are its own: present or swapped, and of no file.
// They come in order, and none lies next to another.
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
		return readPagemap(pagemap, start, end) // of a kernel before 6.7
	}
	return spans, err
}

// regionsAtOnce is how many regions one call is asked for.
const regionsAtOnce = 1024

// scanAll uses PAGEMAP_SCAN.
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

// readPagemap reads one word a page.
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

// appendSpan puts s behind spans, which are in order. Where a scan goes on, the kernel may tell pages that
// it told before: what overlaps the last span is left away.
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
