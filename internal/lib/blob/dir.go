package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

// dir keeps objects as files below a directory, which several hosts may share. The library's own directory
// store does not sync files to the disk. No key may be a directory of another.
type dir struct{ root string }

const (
	incoming = ".new" // below the root: objects that are being written
	// staleAfter is the age from which a file in incoming has no writer any more. The time limit of a write
	// is far shorter.
	staleAfter = 24 * time.Hour
)

func openDir(root string) (*dir, error) {
	d := &dir{root: filepath.Clean(root)}
	if err := os.MkdirAll(filepath.Join(d.root, incoming), 0o700); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(filepath.Join(d.root, incoming))
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < staleAfter {
			continue // removed meanwhile, or being written
		}
		if err := os.Remove(filepath.Join(d.root, incoming, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return d, nil
}

func (d *dir) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

// dirError translates an error of the file system.
func dirError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%w: %w", ErrExists, err)
	case durable.IsNoSpace(err):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

// Get implements Store.
func (d *dir) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	f, err := os.Open(d.path(key))
	if err != nil {
		return nil, dirError(err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = ErrNotFound
	}
	if err == nil && offset > info.Size() {
		err = fmt.Errorf("offset %d is beyond the object's end at %d", offset, info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if rest := info.Size() - offset; length < 0 || length > rest {
		length = rest
	}
	return &section{ctx: ctx, r: io.NewSectionReader(f, offset, length), f: f}, nil
}

// section is a range of a file, until its context ends.
type section struct {
	ctx context.Context // see body
	r   io.Reader
	f   *os.File
}

// Read implements io.Reader.
func (s *section) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}

// Close implements io.Closer.
func (s *section) Close() error { return s.f.Close() }

// Put implements Store.
func (d *dir) Put(ctx context.Context, key string, r io.Reader, size int64) error {
	return d.store(ctx, key, r, size, os.Rename)
}

// PutIfAbsent implements Store.
func (d *dir) PutIfAbsent(ctx context.Context, key string, r io.Reader, size int64) error {
	return d.store(ctx, key, r, size, os.Link)
}

// store writes an object to a temporary file and then calls place to give the file its name.
func (d *dir) store(
	ctx context.Context,
	key string,
	r io.Reader,
	size int64,
	place func(from, to string) error,
) (err error) {
	f, err := os.CreateTemp(filepath.Join(d.root, incoming), "o")
	if err != nil {
		return dirError(err)
	}
	defer func() {
		if removeErr := os.Remove(f.Name()); !errors.Is(removeErr, fs.ErrNotExist) { // a rename has moved it already
			err = errors.Join(err, removeErr)
		}
	}()
	_, err = io.Copy(f, &section{ctx: ctx, r: &exactReader{r, size}})
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return dirError(err)
	}
	to := d.path(key)
	if err := makeDirs(filepath.Dir(to), d.root); err != nil {
		return dirError(err)
	}
	if err := place(f.Name(), to); err != nil {
		return dirError(err)
	}
	return durable.SyncDir(filepath.Dir(to))
}

// makeDirs makes a directory below root, and those on the way to it, durably.
func makeDirs(path, root string) error {
	if path == root {
		return nil
	}
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := makeDirs(filepath.Dir(path), root); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}

// Stat implements Store.
func (d *dir) Stat(_ context.Context, key string) (Info, error) {
	info, err := os.Stat(d.path(key))
	if err != nil {
		return Info{}, dirError(err)
	}
	if info.IsDir() {
		return Info{}, ErrNotFound
	}
	return Info{Key: key, Bytes: info.Size(), Modified: info.ModTime()}, nil
}

// List implements Store.
func (d *dir) List(ctx context.Context, prefix string, yield func(Info) error) error {
	return d.walk(ctx, "", prefix, yield)
}

// walk visits the objects below the key in, which is "" or ends with a slash.
func (d *dir) walk(ctx context.Context, in, prefix string, yield func(Info) error) error {
	list, err := os.ReadDir(d.path(in))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return dirError(err)
	}
	key := func(e fs.DirEntry) string {
		if e.IsDir() {
			return in + e.Name() + "/"
		}
		return in + e.Name()
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return cmp.Compare(key(a), key(b)) })
	for _, e := range list {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		k := key(e)
		switch {
		case e.Name()[0] == '.':
		case e.IsDir() && (strings.HasPrefix(k, prefix) || strings.HasPrefix(prefix, k)):
			err = d.walk(ctx, k, prefix, yield)
		case !e.IsDir() && strings.HasPrefix(k, prefix):
			var info Info
			if info, err = d.Stat(ctx, k); err == nil {
				err = yield(info)
			} else if errors.Is(err, ErrNotFound) { // deleted meanwhile
				err = nil
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete implements Store.
func (d *dir) Delete(_ context.Context, key string) error {
	err := os.Remove(d.path(key))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return dirError(err)
}

// Close implements Store.
func (d *dir) Close() error { return nil }
