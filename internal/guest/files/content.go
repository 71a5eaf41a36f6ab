package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

func timeOf(ts unix.Timespec) time.Time { return time.Unix(ts.Unix()) }

// Read opens a regular file. The returned description is that of the content, through symbolic links.
func (f *Files) Read(
	_ context.Context,
	p, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	at, _, err := f.locate(p, user)
	if err != nil {
		return guestapi.FileInfo{}, nil, err
	}
	if offset < 0 {
		return guestapi.FileInfo{}, nil, fmt.Errorf("%w: offset %d", guestapi.ErrInvalid, offset)
	}
	file, err := os.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return guestapi.FileInfo{}, nil, classify(err)
	}
	i, err := f.readable(file, at, offset)
	if err != nil {
		return i, nil, errors.Join(err, file.Close())
	}
	if length < 0 {
		length = math.MaxInt64
	}
	if min(i.Size-offset, length) >= directSize {
		w, err := newBlockReader(file, offset, length)
		if err != nil {
			return i, nil, errors.Join(err, file.Close())
		}
		return i, w, nil
	}
	return i, &part{io.LimitReader(file, length), file}, nil
}

type part struct {
	io.Reader
	io.Closer
}

func (f *Files) readable(file *os.File, at string, offset int64) (guestapi.FileInfo, error) {
	st, err := file.Stat()
	if err != nil {
		return guestapi.FileInfo{}, classify(err)
	}
	switch {
	case st.IsDir():
		return guestapi.FileInfo{}, fmt.Errorf("%s: %w", at, guestapi.ErrIsDir)
	case !st.Mode().IsRegular():
		return guestapi.FileInfo{}, fmt.Errorf("%w: %s is no regular file", guestapi.ErrInvalid, at)
	}
	if offset > 0 {
		if _, err := file.Seek(offset, io.SeekStart); err != nil {
			return guestapi.FileInfo{}, classify(err)
		}
	}
	i, err := describe(at, f.Users.Names())
	if i.Kind == guestapi.KindSymlink {
		i.Size = st.Size()
	}
	return i, err
}

// Write writes the content of a stream into the file at p, which it creates if it does not exist.
//
// It empties the file and writes it. With Atomic it replaces the file either completely or not at all: it writes a
// temporary file in the same directory and renames it over p. Both follow a symbolic link. Mode 0 keeps the mode of an
// existing file.
func (f *Files) Write(
	ctx context.Context,
	p string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	at, u, err := f.locate(p, opt.User)
	if err == nil {
		err = checkXattrs(opt.Metadata)
	}
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	if err := makeDirs(path.Dir(at), &u); err != nil {
		return guestapi.FileInfo{}, err
	}
	target, mode, err := destination(at, opt.Mode)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	as := newFile{mode: mode, owner: &u, notes: opt.Metadata, size: opt.Size}
	switch {
	case mode == 0: // a device or pipe
		err = writeThrough(ctx, target, r)
	case opt.Atomic:
		err = replace(ctx, target, as, r)
	default:
		err = overwrite(ctx, target, as, r)
	}
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	return describe(at, f.Users.Names())
}

// destination returns the path to replace and the mode of the new file; mode 0 means that the file cannot be
// replaced.
func destination(at string, mode uint32) (string, uint32, error) {
	st, err := os.Stat(at)
	if errors.Is(err, unix.ENOENT) {
		if mode == 0 {
			mode = 0o644
		}
		return at, mode & 0o7777, nil
	}
	if err != nil {
		return "", 0, classify(err)
	}
	if st.IsDir() {
		return "", 0, fmt.Errorf("%s: %w", at, guestapi.ErrIsDir)
	}
	if !st.Mode().IsRegular() {
		return at, 0, nil
	}
	if at, err = realPath(at); err != nil {
		return "", 0, err
	}
	if mode == 0 {
		var raw unix.Stat_t
		if err := unix.Stat(at, &raw); err != nil {
			return "", 0, classify(err)
		}
		mode = raw.Mode & 0o7777
	}
	return at, max(mode&0o7777, 0o400), nil
}

// realPath resolves symbolic links at the end of a path.
func realPath(at string) (string, error) {
	for range 40 {
		to, err := os.Readlink(at)
		if errors.Is(err, unix.EINVAL) {
			return at, nil
		}
		if err != nil {
			return "", classify(err)
		}
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(at), to)
		}
		at = to
	}
	return "", fmt.Errorf("%w: too many symbolic links", guestapi.ErrInvalid)
}

// newFile describes a file that is about to be written.
type newFile struct {
	mode  uint32
	owner *passwd.User
	notes map[string]string
	size  int64 // < 0: unknown
}

func replace(ctx context.Context, at string, as newFile, r io.Reader) (err error) {
	file, err := os.CreateTemp(path.Dir(at), ".pandastack-*")
	if err != nil {
		return classify(err)
	}
	defer func() {
		if err != nil {
			_ = file.Close()           // it is discarded
			_ = os.Remove(file.Name()) // the first error says more
		}
	}()
	if err := store(ctx, file, r, as.size); err != nil {
		return err
	}
	if err := chown(file.Name(), as.owner); err != nil {
		return err
	}
	if err := unix.Fchmod(int(file.Fd()), as.mode); err != nil {
		return classify(err)
	}
	if err := setXattrs(int(file.Fd()), as.notes); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return classify(err)
	}
	return classify(os.Rename(file.Name(), at))
}

// overwrite creates or empties a file and writes it.
func overwrite(ctx context.Context, at string, as newFile, r io.Reader) (err error) {
	file, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK|unix.O_NOCTTY, 0o600)
	if err != nil {
		return classify(err)
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = classify(closed)
		}
	}()
	fd := int(file.Fd())
	if os.Getuid() == 0 {
		if err := unix.Fchown(fd, int(as.owner.UID), int(as.owner.GID)); err != nil {
			return classify(err)
		}
	}
	if err := unix.Fchmod(fd, as.mode); err != nil {
		return classify(err)
	}
	if err := removeXattrs(fd); err != nil {
		return err
	}
	if err := setXattrs(fd, as.notes); err != nil {
		return err
	}
	return store(ctx, file, r, as.size)
}

func writeThrough(ctx context.Context, at string, r io.Reader) error {
	file, err := os.OpenFile(at, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return classify(err)
	}
	return errors.Join(copyAll(ctx, file, r), file.Close())
}

// pieces is a source that returns its content without a copy. Without KVM every copy in a guest is emulated.
type pieces interface {
	Next() ([]byte, error) // the caller owns the bytes
}

// reads adapts any other source to pieces, with one buffer.
type reads struct {
	r   io.Reader
	buf []byte
}

func (s *reads) Next() ([]byte, error) {
	n, err := s.r.Read(s.buf)
	if n > 0 {
		err = nil // the next Read returns it again
	}
	return s.buf[:n], err
}

func copyAll(ctx context.Context, w io.Writer, r io.Reader) error {
	from, ok := r.(pieces)
	if !ok {
		from = &reads{r, make([]byte, 32<<10)}
	}
	for {
		piece, err := from.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive content: %w", err)
		}
		if _, err := w.Write(piece); err != nil {
			return classify(err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
