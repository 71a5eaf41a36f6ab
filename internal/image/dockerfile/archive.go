package dockerfile

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// archiveKind is how an archive is compressed.
type archiveKind int

const (
	notArchive archiveKind = iota
	plainTar
	gzipTar
	bzip2Tar
	zstdTar
)

var magics = []struct {
	kind   archiveKind
	offset int
	magic  string
}{
	{gzipTar, 0, "\x1f\x8b"},
	{bzip2Tar, 0, "BZh"},
	{zstdTar, 0, "\x28\xb5\x2f\xfd"},
	{plainTar, 257, "ustar"},
}

// archiveKind returns the kind of e by its first bytes. A compressed file without a tar stream is not an archive.
func (c *Context) archiveKind(e *entry) (kind archiveKind, err error) {
	r, err := c.open(e)
	if err != nil {
		return 0, fmt.Errorf("read build context: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	in := bufio.NewReader(io.LimitReader(r, e.size))
	head, _ := in.Peek(512) // a shorter file is not an archive
	if bytes.HasPrefix(head, []byte("\xfd7zXZ\x00")) {
		return 0, contextErrorf(
			"%s: ADD does not unpack xz archives: COPY it and unpack it with RUN",
			truncate(e.name, 200),
		)
	}
	for _, m := range magics {
		if len(head) >= m.offset+len(m.magic) && string(head[m.offset:m.offset+len(m.magic)]) == m.magic {
			kind = m.kind
			break
		}
	}
	if kind == notArchive {
		return notArchive, nil
	}
	plain, end, err := decompress(kind, in)
	if err != nil {
		return notArchive, nil //nolint:nilerr // a file that cannot be decompressed is copied unchanged
	}
	defer end()
	if _, err := tar.NewReader(io.LimitReader(plain, 1<<20)).Next(); err != nil {
		return notArchive, nil //nolint:nilerr // a file without a tar stream is copied unchanged
	}
	return kind, nil
}

// decompress returns the tar stream in r. end frees the decompressor.
func decompress(kind archiveKind, r io.Reader) (plain io.Reader, end func(), err error) {
	end = func() {}
	switch kind {
	case gzipTar:
		plain, err = gzip.NewReader(r)
	case bzip2Tar:
		plain = bzip2.NewReader(r)
	case zstdTar:
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nil, err
		}
		return d, d.Close, nil
	default:
		plain = r
	}
	return plain, end, err
}

// unpacker writes the contents of archives to a tar stream.
type unpacker struct {
	s        *Selection
	out      *tar.Writer
	files    int
	bytes    int64
	uid, gid int
}

// unpack writes the entries of the archive e. It checks them and enforces the limits of the context.
func (u *unpacker) unpack(ctx context.Context, e *entry) (err error) {
	kind, err := u.s.c.archiveKind(e)
	if err != nil {
		return err
	}
	r, err := u.s.c.open(e)
	if err != nil {
		return fmt.Errorf("read build context: %w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	plain, end, err := decompress(kind, bufio.NewReader(io.LimitReader(r, e.size)))
	if err != nil {
		return contextErrorf("unpack %s: %v", truncate(e.name, 200), err)
	}
	defer end()
	// The limit includes padding and headers, so that a stream of headers alone is bounded, too.
	in := tar.NewReader(
		&failingLimitReader{r: plain, left: 2*u.s.c.limits.MaxBytes + 4096*int64(u.s.c.limits.MaxFiles)},
	)
	for {
		if err := context.Cause(ctx); err != nil {
			return fmt.Errorf("unpack %s: %w", truncate(e.name, 200), err)
		}
		h, err := in.Next()
		if err == io.EOF {
			return nil
		} else if err != nil {
			return contextErrorf("unpack %s: %v", truncate(e.name, 200), err)
		}
		if err := u.unpackEntry(h, in); err != nil {
			return fmt.Errorf("unpack %s: %w", truncate(e.name, 200), err)
		}
	}
}

// unpackEntry writes one entry of an archive.
func (u *unpacker) unpackEntry(h *tar.Header, in io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		return nil
	}
	u.files++
	u.bytes += h.Size
	if l := u.s.c.limits; u.files > l.MaxFiles || u.bytes > l.MaxBytes {
		return contextErrorf("the archive has more than %d files or %d bytes", l.MaxFiles, l.MaxBytes)
	}
	put := &tar.Header{
		Typeflag: h.Typeflag,
		Name:     name,
		Linkname: h.Linkname,
		Mode:     h.Mode & 0o7777,
		Uid:      h.Uid,
		Gid:      h.Gid,
		ModTime:  h.ModTime,
		Format:   tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		put.Typeflag, put.Size = tar.TypeReg, h.Size
	case tar.TypeDir:
		put.Name += "/"
	case tar.TypeSymlink:
	case tar.TypeLink:
		if put.Linkname, err = cleanName(h.Linkname); err != nil {
			return err
		}
	default:
		return contextErrorf("%s is a device or pipe", truncate(name, 200))
	}
	for key, value := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			if put.PAXRecords == nil {
				put.PAXRecords = map[string]string{}
			}
			put.PAXRecords[key] = value
		}
	}
	if u.s.copy.Chown != "" {
		put.Uid, put.Gid = u.uid, u.gid
	}
	if mode := u.s.copy.mode(); mode >= 0 && put.Typeflag != tar.TypeSymlink {
		put.Mode = mode
	}
	if err := u.out.WriteHeader(put); err != nil {
		return fmt.Errorf("write tar stream: %w", err)
	}
	if put.Typeflag == tar.TypeReg {
		if _, err := io.Copy(u.out, in); err != nil {
			return contextErrorf("%s: %v", truncate(name, 200), err)
		}
	}
	return nil
}

// failingLimitReader returns an error, not io.EOF, after left bytes.
type failingLimitReader struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (l *failingLimitReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("the unpacked archive is too large")
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}
