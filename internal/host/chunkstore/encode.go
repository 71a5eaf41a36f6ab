package chunkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Bounds of manifests, far above those of the largest possible machine.
const (
	maxManifest = 64 << 20 // bytes, before compression
	maxFile     = 1 << 46
	maxName     = 255
)

// checkName rejects names that would leave the directory that files are pulled into.
func checkName(name string) error {
	if name == "" || len(name) > maxName || name[0] == '.' ||
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
		return fmt.Errorf("invalid file name %q", name)
	}
	return nil
}

// pagesOf returns the number of pages of a file with that many bytes.
func pagesOf(bytes int64) int64 { return (bytes + PageSize - 1) / PageSize }

// encode writes the part of a manifest that is sealed. Numbers are varints of the difference to their most
// likely value.
func (m *Manifest) encode() []byte {
	b := binary.AppendVarint(nil, m.Created.UnixNano())
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	text(string(m.Parent))
	text(string(m.Meta))
	number(int64(len(m.Chunks)))
	for _, c := range m.Chunks {
		b = append(b, c.Name[:]...)
		common := int64(0)
		if c.Common {
			common = 1
		}
		number(common)
		number(int64(c.Pages))
		for _, f := range c.Frames {
			number(int64(f))
		}
	}
	number(int64(len(m.Files)))
	for _, f := range m.Files {
		text(f.Name)
		number(f.Bytes)
		number(int64(f.Mode))
		number(int64(len(f.Extents)))
		var last Extent
		for _, e := range f.Extents {
			number(e.Page - last.Page - int64(last.Count))
			number(int64(e.Count))
			number(int64(e.Chunk - last.Chunk))
			number(int64(e.At - last.At - last.Count))
			last = e
		}
	}
	return b
}

// manifestDecoder decodes a manifest. After the first error it returns zeros.
type manifestDecoder struct {
	b   []byte
	err error
}

func (r *manifestDecoder) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.b = nil
}

func (r *manifestDecoder) number(low, high int64) int64 {
	n, used := binary.Varint(r.b)
	if used <= 0 {
		r.fail("manifest is truncated")
		return 0
	}
	r.b = r.b[used:]
	if n < low || n > high {
		r.fail("%d is not in the range from %d to %d", n, low, high)
		return 0
	}
	return n
}

// count reads the number of following items, each of which takes at least size bytes.
func (r *manifestDecoder) count(size int) int {
	return int(r.number(0, int64(len(r.b)/size)))
}

func (r *manifestDecoder) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail("manifest is truncated")
		return make([]byte, n)
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out
}

func (r *manifestDecoder) text() string {
	n, used := binary.Uvarint(r.b)
	if used <= 0 || n > uint64(len(r.b)-used) {
		r.fail("manifest is truncated")
		return ""
	}
	r.b = r.b[used:]
	return string(r.bytes(int(n)))
}

// decode reads the output of encode and checks everything that readers of files rely on.
func (m *Manifest) decode(b []byte) error {
	r := &manifestDecoder{b: b}
	m.Created = time.Unix(0, r.number(math.MinInt64, math.MaxInt64)).UTC()
	m.Parent = ID(r.text())
	m.Meta = []byte(r.text())
	if m.Parent != "" {
		if err := m.Parent.check(); err != nil {
			return err
		}
	}
	m.Chunks = make([]Chunk, r.count(len(Name{})+3))
	for i := range m.Chunks {
		m.Chunks[i] = r.chunk()
	}
	m.Files = make([]File, r.count(4))
	seen := map[string]bool{}
	for i := range m.Files {
		f := r.file(m.Chunks)
		if seen[f.Name] && r.err == nil {
			r.fail("duplicate file %q", f.Name)
		}
		seen[f.Name] = true
		m.Files[i] = f
	}
	if r.err == nil && len(r.b) != 0 {
		return errors.New("unexpected data after the manifest")
	}
	return r.err
}

func (r *manifestDecoder) chunk() Chunk {
	var c Chunk
	copy(c.Name[:], r.bytes(len(c.Name)))
	c.Common = r.number(0, 1) == 1
	c.Pages = int(r.number(1, chunkPages))
	c.Frames = make([]int, (c.Pages+framePages-1)/framePages)
	for i := range c.Frames {
		c.Frames[i] = int(r.number(overhead, FrameSize+overhead))
	}
	return c
}

func (r *manifestDecoder) file(chunks []Chunk) File {
	f := File{Name: r.text()}
	if err := checkName(f.Name); err != nil && r.err == nil {
		r.fail("%w", err)
	}
	f.Bytes = r.number(0, maxFile)
	f.Mode = uint32(r.number(0, 0o777))
	f.Extents = make([]Extent, r.count(4))
	var last Extent
	for i := range f.Extents {
		e := Extent{Page: last.Page + int64(last.Count) + r.number(0, maxFile)}
		e.Count = int(r.number(1, chunkPages))
		e.Chunk = last.Chunk + int(r.number(math.MinInt32, math.MaxInt32))
		e.At = last.At + last.Count + int(r.number(-2*chunkPages, 2*chunkPages))
		switch {
		case r.err != nil:
			return f
		case e.Page+int64(e.Count) > pagesOf(f.Bytes):
			r.fail("file %s of %d bytes has an extent beyond its end", f.Name, f.Bytes)
		case e.Chunk < 0 || e.Chunk >= len(chunks):
			r.fail("file %s refers to chunk %d of %d", f.Name, e.Chunk, len(chunks))
		case e.At < 0 || e.At+e.Count > chunks[e.Chunk].Pages:
			r.fail("file %s refers to pages %d to %d of %d", f.Name, e.At, e.At+e.Count, chunks[e.Chunk].Pages)
		}
		f.Extents[i], last = e, e
	}
	return f
}
