package archive

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// Base describes a base backup.
type Base struct {
	ID       string       `json:"id"`
	System   uint64       `json:"system,string"` // identifier of the cluster
	Timeline wal.Timeline `json:"timeline"`
	Start    wal.LSN      `json:"start"` // the log is needed from here on
	Stop     wal.LSN      `json:"stop"`  // the files are consistent once the log is applied up to here

	Started  time.Time `json:"started"` // by this host's clock
	Finished time.Time `json:"finished"`

	// Variant and Collation identify the programs that can use the files: the build of the server, and the version of
	// its collations. Files must not be used with others.
	Variant   string `json:"variant"`
	Collation string `json:"collation"`

	Bytes int64  `json:"bytes"` // of the tar archive
	Parts []Part `json:"parts"`
	Files int    `json:"files"` // in the manifest
}

// Part is an object with a part of the tar archive.
type Part struct {
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"` // of the content
}

func baseName(id string) string        { return "base/" + id + "/" }
func metaName(id string) string        { return baseName(id) + "meta" }
func manifestName(id string) string    { return baseName(id) + "manifest.zst" }
func partName(id string, n int) string { return fmt.Sprintf("%star/%06d.zst", baseName(id), n) }

// NewBaseID returns an id for a base backup: the timeline, the position, and what makes it unique.
func NewBaseID(t wal.Timeline, start wal.LSN) string {
	unique := make([]byte, 4)
	_, _ = rand.Read(unique) // never fails: it ends the program instead
	return fmt.Sprintf("%08x-%016x-%x", uint32(t), uint64(start), unique)
}

// BaseWriter stores the tar archive of a base backup as it comes. The base exists once Commit has returned nil.
type BaseWriter struct {
	a     *Archive
	ctx   context.Context // of the call that made it
	id    string
	group *errgroup.Group
	buf   []byte
	parts []*Part
	bytes int64
}

// NewBase begins a base backup with an id of NewBaseID. It fails with ctx. What an unfinished one has stored is removed
// by Discard, or by Collect a day later.
func (a *Archive) NewBase(ctx context.Context, id string) *BaseWriter {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(2) // one part is compressed while another is sent
	return &BaseWriter{a: a, ctx: ctx, id: id, group: group, buf: make([]byte, 0, partBytes)}
}

// Write implements io.Writer.
func (w *BaseWriter) Write(data []byte) (int, error) {
	total := len(data)
	for len(data) > 0 {
		n := min(len(data), partBytes-len(w.buf))
		w.buf, data = append(w.buf, data[:n]...), data[n:]
		if len(w.buf) == partBytes {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
}

// flush sends the buffer as a part.
func (w *BaseWriter) flush() error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	content, n, part := w.buf, len(w.parts), &Part{Bytes: len(w.buf)}
	w.parts, w.bytes = append(w.parts, part), w.bytes+int64(len(content))
	w.buf = make([]byte, 0, partBytes)
	w.group.Go(func() error {
		sum := sha256.Sum256(content)
		part.SHA256 = hex.EncodeToString(sum[:])
		return w.a.put(w.ctx, partName(w.id, n), w.a.pack(content))
	})
	return nil
}

// Upload waits until the whole archive is stored.
func (w *BaseWriter) Upload() error {
	var err error
	if len(w.buf) > 0 {
		err = w.flush()
	}
	// The error of a part is the cause of the context's end.
	if failed := w.group.Wait(); failed != nil {
		return failed
	}
	return err
}

// Commit makes the base exist, after Upload. It fills in the fields of b that describe the objects.
func (w *BaseWriter) Commit(ctx context.Context, b *Base, manifest []byte) error {
	if len(manifest) == 0 || len(manifest) > maxManifest/2 {
		return fmt.Errorf("the backup manifest has %d bytes, want up to %d", len(manifest), maxManifest/2)
	}
	b.ID, b.Bytes, b.Parts = w.id, w.bytes, nil
	for _, p := range w.parts {
		b.Parts = append(b.Parts, *p)
	}
	if err := b.check(); err != nil {
		return err
	}
	if err := w.a.put(ctx, manifestName(w.id), w.a.pack(manifest)); err != nil {
		return err
	}
	meta, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return w.a.put(ctx, metaName(w.id), meta)
}

// Discard removes what was stored of a base that was not committed.
func (w *BaseWriter) Discard(ctx context.Context) error {
	_ = w.group.Wait() // its error has been reported, or is of no interest
	return w.a.removeBase(ctx, w.id)
}

func (b *Base) check() error {
	var bytes int64
	for _, p := range b.Parts {
		if p.Bytes <= 0 || p.Bytes > partBytes {
			return fmt.Errorf("base %s has a part of %d bytes", b.ID, p.Bytes)
		}
		bytes += int64(p.Bytes)
	}
	switch {
	case b.System == 0 || b.Timeline == 0 || b.Start == 0 || b.Stop < b.Start:
		return fmt.Errorf("base %s of system %d has timeline %v from %v to %v", b.ID, b.System, b.Timeline, b.Start,
			b.Stop)
	case bytes != b.Bytes || bytes == 0:
		return fmt.Errorf("base %s has parts of %d bytes, want %d", b.ID, bytes, b.Bytes)
	}
	return nil
}

// readBase reads the description of a base.
func (a *Archive) readBase(ctx context.Context, id string) (Base, error) {
	text, err := a.get(ctx, metaName(id))
	if err != nil {
		return Base{}, err
	}
	var b Base
	if err := json.Unmarshal(text, &b); err != nil {
		return Base{}, fmt.Errorf("%s: %w: %w", a.prefix+metaName(id), ErrCorrupt, err)
	}
	if b.ID != id {
		return Base{}, fmt.Errorf("%s: %w: it describes base %.80q", a.prefix+metaName(id), ErrCorrupt, b.ID)
	}
	if err := b.check(); err != nil {
		return Base{}, fmt.Errorf("%s: %w: %w", a.prefix+metaName(id), ErrCorrupt, err)
	}
	return b, nil
}

// ReadManifest reads the manifest of a base.
func (a *Archive) ReadManifest(ctx context.Context, b Base) ([]byte, error) {
	packed, err := a.get(ctx, manifestName(b.ID))
	if err != nil {
		return nil, err
	}
	return a.unpack(manifestName(b.ID), packed, maxManifest/2)
}

// OpenBase returns a reader of the tar archive of a base. Reading verifies each part before any byte of it is returned.
func (a *Archive) OpenBase(ctx context.Context, b Base) io.Reader {
	return &baseReader{a: a, ctx: ctx, b: b}
}

type baseReader struct {
	a    *Archive
	ctx  context.Context // of OpenBase
	b    Base
	n    int // parts that were read
	left []byte
}

// Read implements io.Reader.
func (r *baseReader) Read(p []byte) (int, error) {
	for len(r.left) == 0 {
		if r.n == len(r.b.Parts) {
			return 0, io.EOF
		}
		data, err := r.a.readPart(r.ctx, r.b, r.n)
		if err != nil {
			return 0, err
		}
		r.left = data
		r.n++
	}
	n := copy(p, r.left)
	r.left = r.left[n:]
	return n, nil
}

func (a *Archive) readPart(ctx context.Context, b Base, n int) ([]byte, error) {
	name, part := partName(b.ID, n), b.Parts[n]
	packed, err := a.get(ctx, name)
	if err != nil {
		return nil, err
	}
	data, err := a.unpack(name, packed, partBytes)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(data); len(data) != part.Bytes || hex.EncodeToString(sum[:]) != part.SHA256 {
		return nil, fmt.Errorf("%s: %w: it has other content than the base", a.prefix+name, ErrCorrupt)
	}
	return data, nil
}

// baseOf returns the id of the base that an object belongs to.
func baseOf(name string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(name, "base/")
	id, _, found := strings.Cut(rest, "/")
	return id, ok && found && id != ""
}
