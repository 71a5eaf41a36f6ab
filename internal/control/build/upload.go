package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Upload receives the files of a build into one file of bounded size.
//
// The node never unpacks the file. Close removes it unless a build has taken it.
type Upload struct {
	f     *os.File
	space *space
	taken bool // by a build
	sum   hash.Hash
	left  int64
	limit int64
	tar   *tar.Writer // nil: Write stores bytes as they come
	names map[string]bool
	parts []string // digests of names and contents; their order does not matter
}

// NewUpload begins an upload to the caller's workspace, to whose quota it is charged as it grows.
//
// ctx must not end before Close. If files is set it is a context, to which AddFile adds files; otherwise Write takes
// the bytes of an archive.
func (s *Service) NewUpload(ctx context.Context, p auth.Principal, files bool) (*Upload, error) {
	f, err := os.CreateTemp(s.dir("spool"), "up")
	if err != nil {
		return nil, api.AsError(wrapNoSpace(err))
	}
	u := &Upload{f: f, space: s.newSpace(ctx, p.Workspace, spoolSpace(f.Name())), sum: sha256.New(),
		left: s.cfg.MaxUploadBytes, limit: s.cfg.MaxUploadBytes}
	if files {
		u.tar, u.names = tar.NewWriter(u), map[string]bool{}
	}
	return u, nil
}

// Write implements io.Writer. Errors are *api.Error with the codes too_large, quota_exceeded and no_space.
func (u *Upload) Write(p []byte) (int, error) {
	if int64(len(p)) > u.left {
		return 0, api.Errorf(api.TooLarge, "the upload is larger than %d MiB", u.limit>>20)
	}
	if err := u.space.take(int64(len(p))); err != nil {
		return 0, err
	}
	n, err := u.f.Write(p)
	u.left -= int64(n)
	u.sum.Write(p[:n])
	if err != nil {
		err = wrapNoSpace(err)
	}
	return n, err
}

// wrapNoSpace returns err with the code no_space if the disk is full.
func wrapNoSpace(err error) error {
	if durable.IsNoSpace(err) {
		return api.Wrap(api.NoSpace, err, "the disk of the node is full")
	}
	return err
}

// AddFile adds a file to a context under its path. The file is executable if it begins with "#!": forms have no modes.
func (u *Upload) AddFile(name string, r io.Reader) error {
	if !filepath.IsLocal(name) || len(name) > 4096 || strings.ContainsRune(name, 0) || strings.HasSuffix(name, "/") {
		return api.Errorf(api.Invalid, "file %.80q: not a path inside the context", name).With("field", "context")
	}
	if u.names[name] {
		return api.Errorf(api.Invalid, "file %.80q is in the form twice", name).With("field", "context")
	}
	if u.names[name] = true; len(u.names) > maxContextFiles {
		return api.Errorf(api.TooLarge, "the context has more than %d files", maxContextFiles)
	}
	tmp, size, done, err := u.buffer(io.LimitReader(r, u.left+1))
	if err != nil {
		return wrapNoSpace(err)
	}
	defer done()
	head := make([]byte, 2)
	mode := int64(0o644)
	if n, _ := tmp.ReadAt(head, 0); n == 2 && string(head) == "#!" {
		mode = 0o755
	}
	if _, err := tmp.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := u.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode,
		Format: tar.FormatPAX}); err != nil {
		return err
	}
	part := sha256.New()
	fmt.Fprintf(part, "%q %o\n", name, mode)
	if _, err = io.Copy(io.MultiWriter(u.tar, part), tmp); err != nil {
		return err
	}
	u.parts = append(u.parts, hex.EncodeToString(part.Sum(nil)))
	return nil
}

// smallFile is the size in bytes up to which a file of a context is buffered in memory.
const smallFile = 64 << 10

// buffered is a file that was read to its end.
type buffered interface {
	io.ReadSeeker
	io.ReaderAt
}

// buffer reads a file to its end, because a tar header needs the size and a form does not have it. The caller must call
// done when it no longer needs the file.
func (u *Upload) buffer(r io.Reader) (file buffered, size int64, done func(), err error) {
	var small bytes.Buffer
	size, err = io.CopyN(&small, r, smallFile)
	if errors.Is(err, io.EOF) {
		return bytes.NewReader(small.Bytes()), size, func() {}, nil
	}
	if err != nil {
		return nil, 0, nil, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(u.f.Name()), "part")
	if err != nil {
		return nil, 0, nil, err
	}
	charged := &spaceWriter{w: tmp, sp: u.space}
	done = func() {
		_ = errors.Join(tmp.Close(), os.Remove(tmp.Name())) // Open removes a file that stays
		u.space.give(charged.n)
	}
	size, err = io.Copy(charged, io.MultiReader(&small, r))
	if err != nil {
		done()
		return nil, 0, nil, err
	}
	return tmp, size, done, nil
}

// maxContextFiles is the limit of files in a context that comes as a form.
const maxContextFiles = 100_000

// finish ends the upload and returns the digest of its content.
func (u *Upload) finish() (string, error) {
	if u.tar != nil {
		if err := u.tar.Close(); err != nil {
			return "", wrapNoSpace(err)
		}
		slices.Sort(u.parts)
		u.sum = sha256.New()
		io.WriteString(u.sum, strings.Join(u.parts, "\n"))
	}
	if err := u.f.Sync(); err != nil {
		return "", wrapNoSpace(err)
	}
	return hex.EncodeToString(u.sum.Sum(nil)), nil
}

// moveTo moves the file to its final path.
func (u *Upload) moveTo(path string) error { return os.Rename(u.f.Name(), path) }

// Close closes the upload, and removes its file unless a build has taken it.
func (u *Upload) Close() error {
	err := os.Remove(u.f.Name())
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if !u.taken {
		err = errors.Join(err, u.space.release())
	}
	return errors.Join(err, u.f.Close())
}

// filePath returns where the files of an E2B step are stored, by workspace and hash.
func (s *Service) filePath(workspace api.Workspace, hash string) (string, error) {
	if len(hash) != 64 || strings.Trim(hash, "0123456789abcdef") != "" {
		return "", api.Errorf(api.Invalid, "hash: %.80q is not 64 hexadecimal digits", hash).With("field", "hash")
	}
	return s.dir("files", ownerDir(workspace), hash+".tar"), nil
}

// ownerDir returns the name of the directory with the files of a workspace.
func ownerDir(workspace api.Workspace) string {
	owner := sha256.Sum256([]byte(workspace))
	return hex.EncodeToString(owner[:8])
}

// HasFiles reports whether files with the hash were uploaded to the caller's workspace.
func (s *Service) HasFiles(_ context.Context, p auth.Principal, hash string) (bool, error) {
	path, err := s.filePath(p.Workspace, hash)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(path)
	return err == nil, nil
}

// PutFiles stores a tar stream, compressed by gzip or not, under a hash in the caller's workspace. The hash is a name
// that the client has chosen; PutFiles does not verify it. The file is charged to the quota of the workspace.
func (s *Service) PutFiles(ctx context.Context, p auth.Principal, hash string, r io.Reader) (err error) {
	path, err := s.filePath(p.Workspace, hash)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return api.AsError(wrapNoSpace(err))
	}
	u, err := s.NewUpload(ctx, p, false)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := u.Close(); err == nil && cerr != nil {
			err = api.AsError(cerr)
		}
	}()
	plain, err := gunzip(r)
	if err != nil {
		return err
	}
	if _, err := io.Copy(u, plain); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			return e
		}
		return api.Wrap(api.Invalid, err, fmt.Sprintf("the upload was interrupted: %v", err))
	}
	if _, err := u.finish(); err != nil {
		return api.AsError(err)
	}
	if err := u.moveTo(path); err != nil {
		return api.AsError(err)
	}
	err = s.db.Write(ctx, "files", func(ctx context.Context, tx *store.Tx) error {
		return u.space.moveTo(ctx, tx, s.spaceOf(path))
	})
	if err != nil { // garbage collection charges the file
		return api.AsError(err)
	}
	u.taken = true
	return nil
}

// gunzip returns the content of a stream that may be compressed by gzip.
func gunzip(r io.Reader) (io.Reader, error) {
	in := bufio.NewReader(r)
	if head, _ := in.Peek(2); string(head) != "\x1f\x8b" { // a shorter stream is not compressed
		return in, nil
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, api.Wrap(api.Invalid, err, "the upload is not a gzip stream")
	}
	return z, nil
}
