package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// memDeltaName is the file of an image that says which image it grew from, and where it differs.
const memDeltaName = "layer.json"

// maxMemDelta is up to how many bytes of difference a machine is started on the memory of the older image,
// whose pages are in the page cache already and shared with other machines, and gets the difference
// copied in. A larger difference is rather mapped than copied. A reflink shares blocks and no cache:
// from it, the first touches of a guest go to the disk.
const maxMemDelta = 32 << 20

// memDelta is an image's memory as what it adds to the memory of another image.
type memDelta struct {
	Path     string          `json:"path"` // of the other memory, when this image was saved
	File     vmmproc.FileKey `json:"file"`
	Modified int64           `json:"modified"` // nanoseconds; memory files are never written again
	Bytes    int64           `json:"bytes"`
	Spans    [][2]int64      `json:"spans"`
}

// newMemDelta describes pages over base; nil where there is too much of them or base has no name any more.
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
	var named unix.Stat_t // a file opened through a mapping has the path that it has in its monitor's jail
	if err := unix.Stat(path, &named); err != nil || named.Dev != st.Dev || named.Ino != st.Ino {
		return nil, nil
	}
	l := &memDelta{
		Path:     path,
		File:     vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino},
		Modified: st.Mtim.Nano(),
		Bytes:    st.Size,
	}
	for _, s := range spans {
		l.Spans = append(l.Spans, [2]int64{s.start, s.end})
	}
	return l, nil
}

// parseMemDelta reads a layer of a memory of the given size.
func parseMemDelta(data []byte, bytes int64) (*memDelta, error) {
	var l memDelta
	if err := json.Unmarshal(data, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", memDeltaName, err)
	}
	at := int64(0)
	for _, s := range l.Spans {
		if s[0] < at || s[1] <= s[0] || s[1] > bytes || s[0]%pageSize != 0 || s[1]%pageSize != 0 {
			return nil, fmt.Errorf("%s: span %v is not within the memory, or not behind the one before", memDeltaName, s)
		}
		at = s[1]
	}
	return &l, nil
}

func (l *memDelta) spans() []span {
	out := make([]span, len(l.Spans))
	for i, s := range l.Spans {
		out[i] = span{s[0], s[1]}
	}
	return out
}

// open opens the memory that the layer lies over; nil when it is not there any more.
func (l *memDelta) open(flags int) (*os.File, error) {
	f, err := os.OpenFile(l.Path, flags, 0)
	if err != nil {
		return nil, nil // gone, moved or closed to us: the image is whole without it
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if (vmmproc.FileKey{Device: uint64(st.Dev), Inode: st.Ino}) != l.File || st.Mtim.Nano() != l.Modified ||
		st.Size != l.Bytes {
		return nil, f.Close()
	}
	return f, nil
}

// overlay is the difference that a prepared machine still needs before its guest may live.
type overlay struct {
	memory *os.File // of the image itself
	key    vmmproc.FileKey
	spans  []span
}

// read copies the difference out of the image.
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
