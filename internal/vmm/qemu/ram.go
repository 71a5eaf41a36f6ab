package qemu

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/procimage"
)

const pageSize = 4096

// span is a run of pages, as offsets in the guest's memory.
type span struct{ start, end int64 }

func (s span) bytes() int64 { return s.end - s.start }

func total(spans []span) int64 {
	var n int64
	for _, s := range spans {
		n += s.bytes()
	}
	return n
}

// ram is a guest's memory as a mapping in its monitor.
type ram struct {
	pid   int
	start uint64
	bytes int64
}

// findRAM looks for the mapping of the memory file in the monitor. The device number is not compared:
// btrfs shows another one there than stat does.
func findRAM(pid int, inode uint64, bytes int64) (ram, error) {
	maps, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/maps")
	if err != nil {
		return ram{}, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	start, err := parseMaps(string(maps), inode, bytes)
	if err != nil {
		return ram{}, fmt.Errorf("memory of process %d: %w", pid, err)
	}
	return ram{pid, start, bytes}, nil
}

// parseMaps finds the start of a whole mapping of a file (proc_pid_maps(5)), which the kernel may show in
// several pieces that follow each other.
func parseMaps(maps string, inode uint64, bytes int64) (uint64, error) {
	var start, end uint64
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		if len(f) < 5 || f[4] != strconv.FormatUint(inode, 10) {
			continue
		}
		from, to, ok := strings.Cut(f[0], "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		offset, err3 := strconv.ParseUint(f[2], 16, 64)
		if err := errors.Join(err1, err2, err3); err != nil || !ok {
			return 0, fmt.Errorf("line %q: %w", line, err)
		}
		switch {
		case offset == 0:
			start, end = a, b
		case a == end && offset == a-start:
			end = b
		}
		if end-start == uint64(bytes) {
			return start, nil
		}
	}
	return 0, fmt.Errorf("no mapping of %d bytes of inode %d", bytes, inode)
}

// dirty answers the pages of a private mapping that are not the file's any more.
func (r ram) dirty() ([]span, error) {
	own, err := procimage.Private(r.pid, r.start, r.start+uint64(r.bytes))
	if err != nil {
		return nil, err
	}
	spans := make([]span, len(own))
	for i, s := range own {
		spans[i] = span{int64(s.Start - r.start), int64(s.End - r.start)}
	}
	return spans, nil
}

// read copies the spans out of the monitor into buf, one behind the other.
func (r ram) read(spans []span, buf []byte) error { return procimage.Read(r.pid, r.at(spans), buf) }

// write copies buf into the spans of the monitor's memory.
func (r ram) write(spans []span, buf []byte) error { return procimage.Write(r.pid, r.at(spans), buf) }

// at answers where spans lie in the monitor.
func (r ram) at(spans []span) []procimage.Span {
	out := make([]procimage.Span, len(spans))
	for i, s := range spans {
		out[i] = procimage.Span{Start: r.start + uint64(s.start), End: r.start + uint64(s.end)}
	}
	return out
}

// buffer is anonymous memory in huge pages, present before it is needed.
type buffer struct{ mem []byte }

// newBuffer maps bytes of memory and makes them present.
func newBuffer(bytes int64) (*buffer, error) {
	const huge = 2 << 20
	bytes = (bytes + huge - 1) / huge * huge
	mem, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("%d bytes for captured memory: %w", bytes, err)
	}
	// Both are advice: without them the copy itself makes the pages present.
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
