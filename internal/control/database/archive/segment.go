package archive

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// Coverage says what is known about the log at the end of a segment or of its first bytes.
type Coverage struct {
	// At is a time of the server at which its log ended here, or later: no transaction that the server had committed
	// by then is missing before the end. It is zero if that is not known.
	At time.Time `json:"at,omitzero"`
}

// entryOf parses the name of an object that holds a segment or its first bytes.
func entryOf(name string) (Entry, bool) {
	timeline, file, ok := strings.Cut(name, "/wal/")
	text, ok2 := strings.CutSuffix(file, ".zst")
	if !ok || !ok2 {
		return Entry{}, false
	}
	e := Entry{Bytes: wal.SegmentBytes, name: name}
	text, partial := strings.CutSuffix(text, ".partial")
	if partial {
		var size string
		text, size, _ = strings.Cut(text, ".")
		n, err := strconv.ParseUint(size, 16, 32)
		if err != nil || n == 0 || n >= wal.SegmentBytes || len(size) != 8 {
			return Entry{}, false
		}
		e.Bytes = int(n)
	}
	segment, err := wal.ParseSegment(text)
	if err != nil || timeline != strings.ToLower(segment.Timeline.String()) {
		return Entry{}, false
	}
	e.Segment = segment
	return e, e.objectName() == name
}

// objectName returns the name of the object of an entry.
func (e Entry) objectName() string {
	text := strings.ToLower(e.Segment.String())
	if e.Bytes < wal.SegmentBytes {
		text += fmt.Sprintf(".%08x.partial", e.Bytes)
	}
	return strings.ToLower(e.Segment.Timeline.String()) + "/wal/" + text + ".zst"
}

// skippable begins a frame that decompressors skip, followed by its length.
var skippable = []byte{0x50, 0x2A, 0x4D, 0x18}

// PutSegment stores a segment, or its first bytes if data is shorter than a segment.
func (a *Archive) PutSegment(ctx context.Context, segment wal.Segment, data []byte, c Coverage) error {
	if len(data) == 0 || len(data) > wal.SegmentBytes {
		return fmt.Errorf("segment %v has %d bytes", segment, len(data))
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	packed := append(make([]byte, 0, len(data)/4+1024), skippable...)
	packed = binary.LittleEndian.AppendUint32(packed, uint32(len(text)))
	packed = a.enc.EncodeAll(data, append(packed, text...))
	return a.put(ctx, Entry{Segment: segment, Bytes: len(data)}.objectName(), packed)
}

// RemovePartial removes the object with the first bytes of a segment, in favour of a longer one.
func (a *Archive) RemovePartial(ctx context.Context, segment wal.Segment, bytes int) error {
	return a.delete(ctx, Entry{Segment: segment, Bytes: bytes}.objectName())
}

// ReadSegment reads what an entry of the catalogue has. If a longer object has replaced it since, the result is that
// one's.
func (a *Archive) ReadSegment(ctx context.Context, e Entry) ([]byte, Coverage, error) {
	for {
		data, c, err := a.readEntry(ctx, e)
		if !errors.Is(err, blob.ErrNotFound) || !e.Partial() {
			return data, c, err
		}
		longer, listErr := a.longest(ctx, e.Segment)
		if listErr != nil || longer.Bytes <= e.Bytes {
			return nil, Coverage{}, errors.Join(err, listErr)
		}
		e = longer
	}
}

// longest returns the entry with the most of a segment.
func (a *Archive) longest(ctx context.Context, segment wal.Segment) (Entry, error) {
	var longest Entry
	full := Entry{Segment: segment, Bytes: wal.SegmentBytes}.objectName()
	err := a.store.List(ctx, a.prefix+strings.TrimSuffix(full, "zst"), func(i blob.Info) error {
		if e, ok := entryOf(strings.TrimPrefix(i.Key, a.prefix)); ok && e.Bytes > longest.Bytes {
			longest = e
		}
		return nil
	})
	return longest, err
}

func (a *Archive) readEntry(ctx context.Context, e Entry) ([]byte, Coverage, error) {
	packed, err := a.get(ctx, e.name)
	if err != nil {
		return nil, Coverage{}, err
	}
	c, err := coverage(packed)
	if err != nil {
		return nil, Coverage{}, fmt.Errorf("%s: %w: %w", a.prefix+e.name, ErrCorrupt, err)
	}
	data, err := a.unpack(e.name, packed, wal.SegmentBytes)
	if err == nil && len(data) != e.Bytes {
		err = fmt.Errorf("%s: %w: it has %d bytes, want %d", a.prefix+e.name, ErrCorrupt, len(data), e.Bytes)
	}
	return data, c, err
}

// coverage parses the description before the compressed content.
func coverage(packed []byte) (Coverage, error) {
	var c Coverage
	if len(packed) < 8 || string(packed[:4]) != string(skippable) {
		return c, fmt.Errorf("it has no description")
	}
	n := binary.LittleEndian.Uint32(packed[4:])
	if uint64(n) > uint64(len(packed)-8) || n > 4096 {
		return c, fmt.Errorf("its description has %d bytes", n)
	}
	if err := json.Unmarshal(packed[8:8+n], &c); err != nil {
		return c, fmt.Errorf("its description: %w", err)
	}
	return c, nil
}

func historyName(t wal.Timeline) string { return strings.ToLower(t.String()) + "/history" }

// PutHistory stores the history file of a timeline.
func (a *Archive) PutHistory(ctx context.Context, t wal.Timeline, data []byte) error {
	if _, err := wal.ParseHistory(t, data); err != nil {
		return err
	}
	return a.put(ctx, historyName(t), data)
}

// History reads the history file of a timeline.
func (a *Archive) History(ctx context.Context, t wal.Timeline) ([]byte, error) {
	return a.get(ctx, historyName(t))
}
