package pager

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// Trace is what a machine used of a snapshot's files after a restore, in the order of the first use. It is a
// hint: a wrong trace only costs time.
type Trace []chunkstore.Range

// Bounds of a trace. A machine that soon uses more than maxTracePages of a file is better off with the whole
// file.
const (
	traceMagic     = "PTRC1"
	maxTraceFiles  = 8
	maxTraceName   = 64
	maxTraceRanges = 1 << 16
	maxTracePages  = 1 << 31 // 8 TiB: no file is larger
	MaxTraceBytes  = 1 << 20 // of an encoded trace
)

var errTrace = errors.New("not a valid trace")

// Bytes returns how many bytes a trace covers.
func (t Trace) Bytes() int64 {
	n := int64(0)
	for _, r := range t {
		n += r.Length
	}
	return n
}

// Encode encodes a trace, in about five bytes per range. It omits ranges beyond the bounds of DecodeTrace.
func (t Trace) Encode() []byte {
	var files []string
	var body []byte
	ends := map[string]int64{} // page after the last range, by file
	count := 0
	for _, r := range t {
		i := slices.Index(files, r.File)
		if i < 0 {
			if len(files) == maxTraceFiles || r.File == "" || len(r.File) > maxTraceName {
				continue
			}
			i, files = len(files), append(files, r.File)
		}
		first, last := r.Offset/chunkstore.PageSize, (r.Offset+r.Length+chunkstore.PageSize-1)/chunkstore.PageSize
		if first < 0 || last <= first || last > maxTracePages || count == maxTraceRanges ||
			len(body) > MaxTraceBytes-4096 {
			continue
		}
		body = append(body, byte(i))
		body = binary.AppendVarint(body, first-ends[r.File])
		body = binary.AppendUvarint(body, uint64(last-first))
		ends[r.File] = last
		count++
	}
	out := append([]byte(traceMagic), byte(len(files)))
	for _, name := range files {
		out = append(append(out, byte(len(name))), name...)
	}
	out = append(binary.AppendUvarint(out, uint64(count)), body...)
	return binary.BigEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DecodeTrace decodes the output of Encode. Ranges are aligned to pages. They may overlap, and name files
// that the reader does not have.
func DecodeTrace(data []byte) (Trace, error) {
	if len(data) < len(traceMagic)+5 || len(data) > MaxTraceBytes || string(data[:len(traceMagic)]) != traceMagic {
		return nil, errTrace
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("%w: wrong checksum", errTrace)
	}
	d := decoder{data: body[len(traceMagic):]}
	files := make([]string, d.byte())
	if len(files) > maxTraceFiles {
		return nil, errTrace
	}
	for i := range files {
		files[i] = d.name()
	}
	count := d.uvarint()
	if d.bad || count > maxTraceRanges {
		return nil, errTrace
	}
	ends := make([]int64, len(files))
	trace := make(Trace, 0, count)
	for range count {
		file, delta, pages := int(d.byte()), d.varint(), d.uvarint()
		if d.bad || file >= len(files) || pages == 0 || pages > maxTracePages {
			return nil, errTrace
		}
		first := ends[file] + delta
		if delta > maxTracePages || first < 0 || first+int64(pages) > maxTracePages {
			return nil, errTrace
		}
		ends[file] = first + int64(pages)
		trace = append(
			trace,
			chunkstore.Range{
				File:   files[file],
				Offset: first * chunkstore.PageSize,
				Length: int64(pages) * chunkstore.PageSize,
			},
		)
	}
	if len(d.data) != 0 {
		return nil, errTrace
	}
	return trace, nil
}

// decoder takes values off data. bad is set if one was missing.
type decoder struct {
	data []byte
	bad  bool
}

func (d *decoder) byte() byte {
	if len(d.data) == 0 {
		d.bad = true
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b
}

func (d *decoder) name() string {
	n := int(d.byte())
	if n == 0 || n > maxTraceName || n > len(d.data) {
		d.bad = true
		return ""
	}
	name := string(d.data[:n])
	d.data = d.data[n:]
	return name
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data)
	return v + uint64(d.skip(n))
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.data)
	return v + int64(d.skip(n))
}

// skip drops n bytes and returns 0.
func (d *decoder) skip(n int) int {
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.data = d.data[n:]
	return 0
}

// Recorder records what is used first. All methods may be called concurrently.
type Recorder struct {
	mu      sync.Mutex
	seen    map[string]bits
	trace   Trace
	stopped bool
}

// NewRecorder makes a recorder that ignores uses of the content in known.
func NewRecorder(known Trace) *Recorder {
	r := &Recorder{seen: map[string]bits{}}
	for _, k := range known {
		r.Record(k.File, k.Offset, k.Length)
	}
	r.trace = nil
	return r
}

// Record records the use of a range, parts of which may have been recorded before.
func (r *Recorder) Record(file string, off, length int64) {
	if r == nil || off < 0 || length <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	seen := r.seen[file]
	for page := off / chunkstore.PageSize; page*chunkstore.PageSize < off+length; page++ {
		if seen.has(page) {
			continue
		}
		seen = seen.with(page)
		at := page * chunkstore.PageSize
		if n := len(r.trace); n > 0 && r.trace[n-1].File == file && r.trace[n-1].Offset+r.trace[n-1].Length == at {
			r.trace[n-1].Length += chunkstore.PageSize
		} else if n < maxTraceRanges {
			r.trace = append(r.trace, chunkstore.Range{File: file, Offset: at, Length: chunkstore.PageSize})
		}
	}
	r.seen[file] = seen
}

// Stop ends the recording and returns the trace.
func (r *Recorder) Stop() Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped, r.seen = true, nil
	return r.trace
}

// bits is a set of small numbers.
type bits []uint64

func (b bits) has(n int64) bool { return n>>6 < int64(len(b)) && b[n>>6]&(1<<(n&63)) != 0 }

// with returns b with n added. It may modify b.
func (b bits) with(n int64) bits {
	if grow := n>>6 + 1 - int64(len(b)); grow > 0 {
		b = append(b, make([]uint64, grow)...)
	}
	b[n>>6] |= 1 << (n & 63)
	return b
}
