package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// memDeltaName is the file of an image that holds its memory delta.
const memDeltaName = "layer.json"

// maxMemDelta is the largest delta in bytes for which a machine maps the base memory file. The
// pages of the base are in the page cache already and shared with other machines; only the delta is
// copied. A larger delta costs more to copy than mapping the image's own file, whose first accesses
// go to the disk because a reflink shares blocks but no page cache.
const maxMemDelta = 32 << 20

// memDelta describes an image's memory as its difference to the memory file of another image, the
// base.
type memDelta struct {
	Path     string          `json:"path"` // of the base when this image was saved
	File     vmmproc.FileKey `json:"file"`
	Modified int64           `json:"modified"` // in nanoseconds; memory files are never modified
	Bytes    int64           `json:"bytes"`
	Spans    [][2]int64      `json:"spans"`
}

// newMemDelta returns a delta with the given spans. It returns nil if the delta is too large or if
// base has no path any more.
func newMemDelta(base *os.File, spans []span) (*memDelta, error) {
	if total(spans) > maxMemDelta {
		return nil, nil
	}
	path, err := os.Readlink(fdPath(int(base.Fd())))
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(base.Fd()), &st); err != nil {
		return nil, err
	}
	var named unix.Stat_t // a file opened through /proc/PID/map_files has its path in the monitor's jail
	if err := unix.Stat(path, &named); err != nil || named.Dev != st.Dev || named.Ino != st.Ino {
		return nil, nil
	}
	delta := &memDelta{
		Path:     path,
		File:     vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino},
		Modified: st.Mtim.Nano(),
		Bytes:    st.Size,
	}
	for _, s := range spans {
		delta.Spans = append(delta.Spans, [2]int64{s.start, s.end})
	}
	return delta, nil
}

// parseMemDelta decodes a delta for a memory of the given size.
func parseMemDelta(data []byte, bytes int64) (*memDelta, error) {
	var delta memDelta
	if err := json.Unmarshal(data, &delta); err != nil {
		return nil, fmt.Errorf("%s: %w", memDeltaName, err)
	}
	at := int64(0)
	for _, s := range delta.Spans {
		if s[0] < at || s[1] <= s[0] || s[1] > bytes || s[0]%pageSize != 0 || s[1]%pageSize != 0 {
			return nil, fmt.Errorf("%s: span %v is not sorted, not aligned or out of range", memDeltaName, s)
		}
		at = s[1]
	}
	return &delta, nil
}

func (d *memDelta) spans() []span {
	out := make([]span, len(d.Spans))
	for i, s := range d.Spans {
		out[i] = span{s[0], s[1]}
	}
	return out
}

// open opens the base, or returns nil if it no longer exists.
func (d *memDelta) open(flags int) (*os.File, error) {
	f, err := os.OpenFile(d.Path, flags, 0)
	if err != nil {
		return nil, nil // removed, moved or not accessible; the image is complete without it
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if (vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}) != d.File || st.Mtim.Nano() != d.Modified ||
		st.Size != d.Bytes {
		return nil, f.Close()
	}
	return f, nil
}

// overlay is a memory delta that must be copied into a prepared machine before its guest runs.
type overlay struct {
	memory *os.File // of the image itself
	key    vmmproc.FileKey
	spans  []span
}

// read copies the delta from the image's memory file.
func (o *overlay) read() (*buffer, error) {
	b, err := newBuffer(total(o.spans))
	if err != nil {
		return nil, err
	}
	rest := b.mem
	for _, s := range o.spans {
		if _, err := o.memory.ReadAt(rest[:s.bytes()], s.start); err != nil {
			return nil, errors.Join(err, b.free())
		}
		rest = rest[s.bytes():]
	}
	return b, nil
}

func (o *overlay) close() error {
	if o == nil {
		return nil
	}
	return o.memory.Close()
}
