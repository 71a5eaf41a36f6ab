package qemu

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
)

const pageSize = 4096

// span is a range of pages, given by offsets in the guest's memory.
type span struct{ start, end int64 }

func (s span) bytes() int64 { return s.end - s.start }

func total(spans []span) int64 {
	var n int64
	for _, s := range spans {
		n += s.bytes()
	}
	return n
}

// guestMemory is the mapping of a guest's memory in its monitor.
type guestMemory struct {
	pid   int
	start uint64
	bytes int64
}

// findGuestMemory finds the mapping of the memory file in the monitor.
func findGuestMemory(pid int, inode uint64, bytes int64) (guestMemory, error) {
	start, err := checkpoint.FindMapped(pid, inode, bytes)
	return guestMemory{pid, start, bytes}, err
}

// dirty returns the private pages of the mapping, which no longer are those of the file.
func (g guestMemory) dirty() ([]span, error) {
	own, err := checkpoint.PrivatePages(g.pid, g.start, g.start+uint64(g.bytes))
	if err != nil {
		return nil, err
	}
	spans := make([]span, len(own))
	for i, s := range own {
		spans[i] = span{int64(s.Start - g.start), int64(s.End - g.start)}
	}
	return spans, nil
}

// read copies the spans from the monitor into buf, one after the other.
func (g guestMemory) read(spans []span, buf []byte) error {
	return checkpoint.Read(g.pid, g.at(spans), buf)
}

// write copies buf into the spans of the monitor's memory.
func (g guestMemory) write(spans []span, buf []byte) error {
	return checkpoint.Write(g.pid, g.at(spans), buf)
}

// at returns the addresses of the spans in the monitor.
func (g guestMemory) at(spans []span) []checkpoint.Span {
	out := make([]checkpoint.Span, len(spans))
	for i, s := range spans {
		out[i] = checkpoint.Span{Start: g.start + uint64(s.start), End: g.start + uint64(s.end)}
	}
	return out
}

// buffer is anonymous memory in huge pages that is populated in advance.
type buffer struct{ mem []byte }

// newBuffer maps and populates bytes of memory.
func newBuffer(bytes int64) (*buffer, error) {
	const huge = 2 << 20
	bytes = (bytes + huge - 1) / huge * huge
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes for captured memory: %w", bytes, err)
	}
	// Both calls are optional: without them, copying populates the pages.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
	return &buffer{mem}, nil
}

func (b *buffer) free() error {
	if b == nil || b.mem == nil {
		return nil
	}
	mem := b.mem
	b.mem = nil
	return unix.Munmap(mem)
}
