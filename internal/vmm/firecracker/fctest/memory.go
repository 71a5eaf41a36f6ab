package fctest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

const pageBytes = 4096

// memory is the guest's memory, in a real mapping.
type memory struct {
	mem     []byte
	kind    string         // "fresh", fcapi.BackendFile or fcapi.BackendUffd
	touched map[int64]bool // pages used since the start
	dirty   map[int64]bool // pages written since the last snapshot
	file    *os.File       // the mapped file
	was     unix.Stat_t    // file's attributes when it was mapped
	faults  *uffd          // open until the machine ends
}

// guestAt is the address of the fake guest's state.
const guestAt = 1 << 20

func (m *memory) begin(kind string, mem []byte) {
	m.kind, m.mem = kind, mem
	m.touched, m.dirty = map[int64]bool{}, map[int64]bool{}
}

// fresh creates the memory of a booted machine.
func (m *memory) fresh(s shape) error {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if s.HugePages == fcapi.PagesHuge {
		flags |= unix.MAP_HUGETLB | unix.MAP_HUGE_2MB
	}
	mem, err := unix.Mmap(-1, 0, int(s.bytes()), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return bad("Cannot create the memory: %v", err)
	}
	m.begin("fresh", mem)
	return nil
}

// restore creates the memory of a restored machine.
func (m *memory) restore(s shape, b fcapi.MemoryBackend) error {
	if b.Type == fcapi.BackendUffd {
		if err := m.fresh(s); err != nil {
			return err
		}
		m.kind = b.Type
		var err error
		m.faults, err = handOver(m.mem, s.pageBytes(), b.Path)
		return err
	}
	if s.HugePages == fcapi.PagesHuge {
		return bad("Cannot restore hugetlbfs backed snapshot by mapping the memory file. Please use uffd.")
	}
	f, err := os.Open(b.Path)
	if err != nil {
		return err
	}
	m.file = f
	if err := unix.Fstat(int(f.Fd()), &m.was); err != nil {
		return err
	}
	if m.was.Size != s.bytes() {
		return fmt.Errorf("memory file has %d bytes, the snapshot %d", m.was.Size, s.bytes())
	}
	mem, err := unix.Mmap(
		int(f.Fd()),
		0,
		int(s.bytes()),
		unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_NORESERVE,
	)
	if err != nil {
		return err
	}
	m.begin(b.Type, mem)
	return nil
}

// changed reports whether the mapped file was written or truncated.
func (m *memory) changed() bool {
	if m.file == nil {
		return false
	}
	var now unix.Stat_t
	err := unix.Fstat(int(m.file.Fd()), &now)
	return err != nil || now.Size != m.was.Size || now.Mtim != m.was.Mtim
}

// put writes the guest's state into memory. It writes only pages that differ.
func (m *memory) put(data []byte) error {
	if int64(len(data)) > int64(len(m.mem))-guestAt {
		return bad("the guest of %d bytes does not fit its memory", len(data))
	}
	for at := 0; at < len(data); at += pageBytes {
		part := data[at:min(len(data), at+pageBytes)]
		page := m.mem[guestAt+at : guestAt+at+len(part)]
		n := int64(guestAt+at) / pageBytes
		m.touched[n] = true
		if !bytes.Equal(page, part) {
			copy(page, part)
			m.dirty[n] = true
		}
	}
	return nil
}

// get reads the guest's state.
func (m *memory) get(n int64) ([]byte, error) {
	if n < 0 || n > int64(len(m.mem))-guestAt {
		return nil, errors.New("the guest does not fit its memory")
	}
	for at := int64(0); at < n; at += pageBytes {
		m.touched[(guestAt+at)/pageBytes] = true
	}
	return bytes.Clone(m.mem[guestAt : guestAt+n]), nil
}

// release gives bytes at the end of memory back to the host, like a balloon.
func (m *memory) release(n int64) error {
	if n == 0 {
		return nil
	}
	part := m.mem[int64(len(m.mem))-n:]
	if m.kind == fcapi.BackendFile {
		return nil // Firecracker maps new memory there
	}
	if err := unix.Madvise(part, unix.MADV_DONTNEED); err != nil {
		return bad("cannot discard memory: %v", err)
	}
	return nil
}

// save writes the memory file of a snapshot. A file of the right size is written in place; any
// other is replaced.
func (m *memory) save(path string, full, tracked bool) (err error) {
	size := int64(len(m.mem))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Sync(), f.Close()) }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if full || st.Size() != size {
		if err := errors.Join(f.Truncate(0), f.Truncate(size)); err != nil {
			return err
		}
	}
	pages := m.dirty
	if !tracked {
		pages = m.touched
		full = full || m.kind == fcapi.BackendFile // mincore(2) counts page cache as resident, so all pages may be
	}
	if full {
		_, err = io.NewOffsetWriter(f, 0).Write(m.mem)
	}
	for n := range pages {
		if full || err != nil {
			break
		}
		_, err = f.WriteAt(m.mem[n*pageBytes:(n+1)*pageBytes], n*pageBytes)
	}
	if tracked {
		m.dirty = map[int64]bool{}
	}
	return err
}
