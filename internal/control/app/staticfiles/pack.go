package staticfiles

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"

	"github.com/pandastack/pandastack/api"
)

// Store keeps the files of a tar archive under key, in the place of those that were there.
//
// The key is that of a deployment. Errors about the archive are *api.Error.
func (f *Files) Store(ctx context.Context, key string, archive io.Reader) error {
	file, err := os.CreateTemp(f.dir, "static-*")
	if err != nil {
		return err
	}
	defer file.Close()                             //nolint:errcheck // it was read back
	if err := os.Remove(file.Name()); err != nil { // it exists until it is closed
		return err
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	defer encoder.Close() //nolint:errcheck // it writes nothing
	set := &Set{store: f.store, key: key, entries: map[string]Entry{}}
	p := packer{limits: f.limits, set: set, file: file, zstd: encoder}
	if err := p.unpack(ctx, archive); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := f.Delete(ctx, key); err != nil {
		return err
	}
	if err := f.store.Put(ctx, packKey(key), file, p.size); err != nil {
		return err
	}
	return set.write(ctx) // last: a set with an index is complete
}

// packer writes the contents of an archive into a file.
type packer struct {
	limits Limits
	set    *Set
	file   *os.File
	size   int64 // of file
	bytes  int64 // of all contents
	zstd   *zstd.Encoder
}

func (p *packer) unpack(ctx context.Context, archive io.Reader) error {
	// Headers and padding take less than 8 KiB per entry, of which those with long names have two more.
	bounded := &io.LimitedReader{R: archive, N: p.limits.Bytes + int64(p.limits.Files+1)*(8<<10)}
	entries := tar.NewReader(bounded)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF) && bounded.N > 0:
			return nil
		case bounded.N <= 0:
			return p.tooLarge()
		case err != nil:
			return invalid(err)
		case n >= p.limits.Files:
			return api.Errorf(api.TooLarge, "there are more than %d static files and directories", p.limits.Files)
		}
		if err := p.entry(h, entries); err != nil {
			return err
		}
	}
}

func (p *packer) tooLarge() error {
	return api.Errorf(api.TooLarge, "the static files have more than %d MiB", p.limits.Bytes>>20)
}

func invalid(cause error) error {
	return api.Wrap(api.Invalid, cause, fmt.Sprintf("the archive of the static files cannot be read: %v", cause))
}

// entry takes an entry of the archive.
func (p *packer) entry(h *tar.Header, content io.Reader) error {
	name := path.Clean("/" + h.Name)[1:]
	switch {
	case strings.HasPrefix(h.Name, "/") || hasDots(h.Name) || strings.ContainsAny(h.Name, "\\\x00") ||
		len(h.Name) > maxPath || !utf8.ValidString(h.Name):
		return api.Errorf(api.Invalid, "%.100q is not a path of a static file", h.Name)
	case h.Typeflag == tar.TypeDir:
		return nil
	case h.Typeflag != tar.TypeReg:
		return api.Errorf(api.Invalid, "the static file %.100q is a link or a special file: copy its content", h.Name)
	case h.Size > p.limits.Bytes-p.bytes:
		return p.tooLarge()
	case isHidden(name):
		return nil
	}
	if _, ok := p.set.entries[name]; ok || name == "" {
		return api.Errorf(api.Invalid, "the static file %.100q is in the archive twice", h.Name)
	}
	e := Entry{Parts: map[string]Part{}}
	hash := sha256.New()
	part, err := p.add(func(w io.Writer) error {
		_, err := io.Copy(io.MultiWriter(w, hash), content)
		return err
	})
	if err != nil {
		return err
	}
	p.bytes += part.Bytes
	e.Parts[Identity], e.Hash = part, hex.EncodeToString(hash.Sum(nil)[:16])
	if err := p.compress(name, e, part); err != nil {
		return err
	}
	p.set.entries[name] = e
	return nil
}

func hasDots(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// Sizes between which contents are compressed.
const (
	minCompressed = 512
	maxCompressed = 16 << 20
)

// compress adds compressed forms of a content where they are smaller.
func (p *packer) compress(name string, e Entry, plain Part) error {
	if plain.Bytes < minCompressed || plain.Bytes > maxCompressed || !IsText(name) {
		return nil
	}
	for _, encoding := range []string{Gzip, Zstd} {
		part, err := p.add(func(w io.Writer) error { return p.encode(w, encoding, plain) })
		if err != nil {
			return err
		}
		if part.Bytes*10 < plain.Bytes*9 {
			e.Parts[encoding] = part
			continue
		}
		if p.size = part.Offset; p.file.Truncate(p.size) != nil {
			return errors.New("staticfiles: the file of contents cannot be shortened")
		}
		if _, err := p.file.Seek(p.size, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}

// encode writes the compressed form of a content.
func (p *packer) encode(w io.Writer, encoding string, plain Part) (err error) {
	r := io.NewSectionReader(p.file, plain.Offset, plain.Bytes)
	if encoding == Zstd {
		p.zstd.Reset(w)
		_, err = io.Copy(p.zstd, r)
		return errors.Join(err, p.zstd.Close())
	}
	z := gzip.NewWriter(w)
	_, err = io.Copy(z, r)
	return errors.Join(err, z.Close())
}

// add appends what write writes. Errors are those of the archive, from which write may read.
func (p *packer) add(write func(io.Writer) error) (Part, error) {
	w := &counter{w: p.file}
	err := write(w)
	part := Part{p.size, w.n}
	p.size += w.n
	if w.err != nil {
		return part, w.err
	}
	if err != nil {
		return part, invalid(err)
	}
	return part, nil
}

// counter counts what was written, and keeps the error of the file.
type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.err = err
	return n, err
}
