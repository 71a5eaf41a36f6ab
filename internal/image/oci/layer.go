package oci

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// record is one entry of a layer.
type record struct {
	header *tar.Header
	offset int64 // of the content in the file of the layer
}

// unpacked is a verified layer: its tar stream in a file, and the entries of the stream.
type unpacked struct {
	file    *os.File
	records []record
}

// budget is the rest of the limits of an image.
type budget struct {
	entries, bytes int64
	memory         *memoryBudget // shared by all layers
}

// memoryBudget is the rest of Limits.MaxIndex.
type memoryBudget struct{ left atomic.Int64 }

// take takes n bytes. The caller gives back what it does not keep.
func (m *memoryBudget) take(n int64) error {
	if m.left.Add(-n) < 0 {
		m.left.Add(n)
		return fmt.Errorf("%w: the names and attributes of its files take too much memory", ErrTooLarge)
	}
	return nil
}

func (m *memoryBudget) give(n int64) { m.left.Add(n) }

// Memory of an entry without its strings (header, record, node of the tree), and what a directory and attributes add.
const (
	entryMemory     = 400
	directoryMemory = 320
	attributeMemory = 400
)

// maxXattrs bounds the names and values of the extended attributes of one file together, as Linux bounds one value.
const maxXattrs = 64 << 10

// memory returns about how much memory the header of an entry takes.
func memory(h *tar.Header) int64 {
	n := int64(entryMemory + len(h.Name) + len(h.Linkname))
	if h.Typeflag == tar.TypeDir {
		n += directoryMemory
	}
	for key, value := range h.PAXRecords {
		n += int64(attributeMemory + (len(key)+len(value))*5/4) // the runtime rounds sizes up
	}
	return n
}

// layer returns a layer of img from the cache or from the registry. The caller closes its file.
func (p *Puller) layer(
	ctx context.Context,
	client func() (*http.Client, error),
	img *Image,
	i int,
	left *budget,
) (*unpacked, error) {
	l := img.Layers[i]
	path := p.cachePath(img, l)
	if p.opt.CacheBytes > 0 {
		before := *left
		u, err := p.openCached(ctx, path, l, left)
		if u != nil || err != nil {
			return u, err
		}
		*left = before
	}
	hc, err := client()
	if err != nil {
		return nil, classify(ctx, err)
	}
	part, err := os.CreateTemp(p.opt.Dir, "part-*")
	if err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	drop := func(err error) (*unpacked, error) { return nil, errors.Join(err, part.Close(), os.Remove(part.Name())) }
	body := p.newBlob(ctx, hc, img.repository, l)
	source := &progress{r: body, report: func(done int64) {
		if p.opt.Progress != nil {
			p.opt.Progress(i, done, l.Size)
		}
	}}
	u, err := p.unpack(source, l, part, left)
	if err = errors.Join(err, body.Close()); err != nil {
		return drop(err)
	}
	if p.opt.CacheBytes == 0 {
		// Only the open file is needed.
		if err := os.Remove(part.Name()); err != nil {
			return drop(fmt.Errorf("write layer: %w", err))
		}
		return u, nil
	}
	if err := os.Rename(part.Name(), path); err != nil {
		return drop(fmt.Errorf("write layer: %w", err))
	}
	return u, nil
}

// unpack verifies a blob, decompresses it into part, and lists the entries of its tar stream.
func (p *Puller) unpack(r io.Reader, l Layer, part *os.File, left *budget) (*unpacked, error) {
	blobSum := newHashReader(r)
	in := bufio.NewReaderSize(blobSum, 256<<10)
	plain, end, err := decompress(in)
	if err != nil {
		return nil, wrapCorrupt(err)
	}
	defer end()
	out := bufio.NewWriterSize(takeWriter{part, p.take}, 1<<20)
	most := max(p.opt.Limits.RatioFrom, mulSaturated(l.Size, p.opt.Limits.MaxRatio))
	stream := newHashReader(&budgetReader{r: plain, budget: left, layer: most})
	stream.copy = out
	records, err := index(stream, left)
	if err == nil {
		_, err = io.Copy(io.Discard, in) // bytes behind the compressed stream belong to the blob, too
	}
	switch {
	case stream.failed != nil:
		return nil, fmt.Errorf("write layer: %w", stream.failed)
	case err != nil:
		return nil, wrapCorrupt(err)
	case blobSum.n != l.Size || blobSum.String() != l.Digest:
		return nil, fmt.Errorf("%w: blob %s has digest %s and %d bytes", ErrCorrupt, l.Digest, blobSum, blobSum.n)
	case stream.String() != l.DiffID:
		return nil, fmt.Errorf("%w: layer %s has DiffID %s, not %s", ErrCorrupt, l.Digest, stream, l.DiffID)
	}
	if err := out.Flush(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	return &unpacked{part, records}, nil
}

// index lists the entries of a tar stream and reads it to its end.
func index(stream *hashReader, left *budget) (all []record, err error) {
	taken := int64(0)
	defer func() {
		if err != nil {
			left.memory.give(taken)
		}
	}()
	t := tar.NewReader(stream)
	for {
		h, err := t.Next()
		if err == io.EOF {
			_, err = io.Copy(io.Discard, stream)
			return all, err
		} else if err != nil {
			return nil, err
		}
		if left.entries--; left.entries < 0 {
			return nil, fmt.Errorf("%w: too many entries", ErrTooLarge)
		}
		if err := checkHeader(h); err != nil {
			return nil, err
		}
		h, err = trimHeader(h)
		if err != nil {
			return nil, err
		}
		cost := memory(h)
		if err := left.memory.take(cost); err != nil {
			return nil, err
		}
		taken += cost
		all = append(all, record{h, stream.n})
	}
}

// checkHeader refuses entries that a valid layer cannot have.
func checkHeader(h *tar.Header) error {
	if h.Typeflag == tar.TypeGNUSparse || h.PAXRecords["GNU.sparse.major"] != "" ||
		h.PAXRecords["GNU.sparse.map"] != "" {
		return fmt.Errorf("%w: %.100q is a sparse file", ErrCorrupt, h.Name)
	}
	switch h.Typeflag {
	case tar.TypeReg,
		tar.TypeDir,
		tar.TypeSymlink,
		tar.TypeLink,
		tar.TypeChar,
		tar.TypeBlock,
		tar.TypeFifo,
		tar.TypeXGlobalHeader:
	default:
		return fmt.Errorf("%w: %.100q has the unknown type %q", ErrCorrupt, h.Name, h.Typeflag)
	}
	if len(h.Name) > 4096 || len(h.Linkname) > 4095 || strings.Contains(h.Name+h.Linkname, "\x00") {
		return fmt.Errorf("%w: %.100q is not a path", ErrCorrupt, h.Name)
	}
	if h.Uid < 0 || h.Uid > math.MaxUint32 || h.Gid < 0 || h.Gid > math.MaxUint32 {
		return fmt.Errorf("%w: %.100q has the invalid owner %d:%d", ErrCorrupt, h.Name, h.Uid, h.Gid)
	}
	return nil
}

const xattrPrefix = "SCHILY.xattr."

// trimHeader returns a header with the fields that a flattened image keeps.
func trimHeader(h *tar.Header) (*tar.Header, error) {
	out := &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777,
		Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime, Devmajor: h.Devmajor, Devminor: h.Devminor, Format: tar.FormatPAX}
	size := 0
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, xattrPrefix) && len(key) > len(xattrPrefix) {
			if out.PAXRecords == nil {
				out.PAXRecords = map[string]string{}
			}
			out.PAXRecords[key] = value
			size += len(key) + len(value)
		}
	}
	if size > maxXattrs {
		return nil, fmt.Errorf(
			"%w: %.100q has more than %d bytes of extended attributes",
			ErrTooLarge,
			h.Name,
			maxXattrs,
		)
	}
	return out, nil
}

// wrapCorrupt returns err as ErrCorrupt unless it is another error of this package or of a context.
func wrapCorrupt(err error) error {
	for _, known := range []error{ErrTooLarge, ErrUnavailable, ErrReference, ErrDenied, ErrNotFound, ErrCorrupt,
		context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// maxWindow bounds the memory of a zstd decoder; compressors use 8 MiB by default.
const maxWindow = 32 << 20

// decompress returns the tar stream in r, whose first bytes identify the compression.
func decompress(r *bufio.Reader) (plain io.Reader, end func(), err error) {
	head, err := r.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		z, err := gzip.NewReader(r)
		return z, func() {}, err
	case string(head) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return r, func() {}, nil
}

// hashReader counts, hashes and copies the bytes that are read through it.
type hashReader struct {
	r      io.Reader
	h      hash.Hash
	n      int64
	copy   io.Writer
	failed error // error of copy
}

func newHashReader(r io.Reader) *hashReader { return &hashReader{r: r, h: sha256.New()} }

// Read implements io.Reader.
func (s *hashReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.h.Write(p[:n])
	if s.copy != nil && s.failed == nil {
		if _, s.failed = s.copy.Write(p[:n]); s.failed != nil {
			return n, s.failed
		}
	}
	return n, err
}

// String returns the digest of the bytes so far.
func (s *hashReader) String() string { return "sha256:" + hex.EncodeToString(s.h.Sum(nil)) }

// budgetReader returns an error, not io.EOF, when the image or the layer is too large.
type budgetReader struct {
	r      io.Reader
	budget *budget
	layer  int64
}

// Read implements io.Reader.
func (b *budgetReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	b.budget.bytes -= int64(n)
	b.layer -= int64(n)
	switch {
	case b.budget.bytes < 0:
		return n, fmt.Errorf("%w: the unpacked image exceeds the limit", ErrTooLarge)
	case b.layer < 0:
		return n, fmt.Errorf("%w: the compression ratio of a layer exceeds the limit", ErrTooLarge)
	}
	return n, err
}

// takeWriter asks for space before it writes.
type takeWriter struct {
	w    io.Writer
	take func(bytes int64) error // nil: it need not ask
}

// Write implements io.Writer.
func (t takeWriter) Write(p []byte) (int, error) {
	if t.take != nil {
		if err := t.take(int64(len(p))); err != nil {
			return 0, err
		}
	}
	return t.w.Write(p)
}

func mulSaturated(a, b int64) int64 {
	if a > 0 && b > math.MaxInt64/a {
		return math.MaxInt64
	}
	return a * b
}

// progress reports the number of bytes read, at every MiB.
type progress struct {
	r              io.Reader
	report         func(int64)
	done, reported int64
}

// Read implements io.Reader.
func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.done += int64(n)
	if p.done-p.reported >= 1<<20 || err == io.EOF {
		p.reported = p.done
		p.report(p.done)
	}
	return n, err
}
