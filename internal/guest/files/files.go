// Package files reads, writes and watches files for the guest agent.
//
// It owns nothing but the temporary files of writes in progress. Relative paths start at the home directory of the
// user of the request, who also owns the files it makes. Access is not checked against that user, since a caller
// controls the whole machine. The size of every result is limited. All functions are safe for concurrent use.
package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

const (
	maxEntries = 1 << 16
	maxWatches = 8192 // directories of one watcher
)

// Files accesses the files of one machine.
type Files struct {
	Users passwd.Database
	// DefaultUser returns the user of a request that names none.
	DefaultUser func() string
}

// locate returns the absolute path and the user of a request.
func (f *Files) locate(p, user string) (string, passwd.User, error) {
	if p == "" || strings.IndexByte(p, 0) >= 0 || len(p) > guestapi.MaxPath {
		return "", passwd.User{}, fmt.Errorf("%w: path", guestapi.ErrInvalid)
	}
	if user == "" {
		user = f.DefaultUser()
	}
	u, err := f.Users.Lookup(user)
	if err != nil {
		return "", u, err
	}
	return u.Resolve(p), u, nil
}

// classify wraps an error of the system with the matching error of guestapi.
func classify(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range []struct {
		errno unix.Errno
		kind  error
	}{
		{unix.ENOENT, guestapi.ErrNotFound},
		{unix.EEXIST, guestapi.ErrExists},
		{unix.ENOTDIR, guestapi.ErrNotDir},
		{unix.EISDIR, guestapi.ErrIsDir},
		{unix.ENOSPC, guestapi.ErrNoSpace},
		{unix.EDQUOT, guestapi.ErrNoSpace},
		{unix.EFBIG, guestapi.ErrNoSpace},
		{unix.EACCES, guestapi.ErrPermission},
		{unix.EPERM, guestapi.ErrPermission},
		{unix.EROFS, guestapi.ErrPermission},
		{unix.EBUSY, guestapi.ErrPermission},
		{unix.ETXTBSY, guestapi.ErrPermission},
		{unix.ENOTEMPTY, guestapi.ErrInvalid},
		{unix.ELOOP, guestapi.ErrInvalid},
		{unix.ENAMETOOLONG, guestapi.ErrInvalid},
		{unix.EINVAL, guestapi.ErrInvalid},
		{unix.EXDEV, guestapi.ErrInvalid},
	} {
		if errors.Is(err, k.errno) {
			return fmt.Errorf("%w: %w", k.kind, err)
		}
	}
	return err
}

// describe returns the description of one file. It does not follow symbolic links.
func describe(at string, names *passwd.Names) (guestapi.FileInfo, error) {
	var st unix.Stat_t
	if err := unix.Lstat(at, &st); err != nil {
		return guestapi.FileInfo{}, classify(&fs.PathError{Op: "stat", Path: at, Err: err})
	}
	i := guestapi.FileInfo{
		Path:  at,
		Name:  path.Base(at),
		Kind:  kindOf(st.Mode),
		Size:  st.Size,
		Mode:  st.Mode & 0o7777,
		UID:   st.Uid,
		GID:   st.Gid,
		User:  names.User(st.Uid),
		Group: names.Group(st.Gid),
	}
	i.Modified = timeOf(st.Mtim)
	switch i.Kind {
	case guestapi.KindFile:
		i.Metadata = xattrsOf(at)
	case guestapi.KindSymlink:
		i.Target, _ = os.Readlink(at) // a link that was removed meanwhile has no target
		i.End = linkEnd(at)
	}
	return i, nil
}

// linkEnd returns where a symbolic link leads.
func linkEnd(at string) *guestapi.LinkEnd {
	end, err := filepath.EvalSymlinks(at)
	if err != nil || len(end) > guestapi.MaxPath {
		return &guestapi.LinkEnd{Path: at}
	}
	var st unix.Stat_t
	if err := unix.Lstat(end, &st); err != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &guestapi.LinkEnd{Path: at} // it was changed meanwhile
	}
	return &guestapi.LinkEnd{Path: end, Kind: kindOf(st.Mode), Mode: st.Mode & 0o7777}
}

func kindOf(mode uint32) guestapi.FileKind {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return guestapi.KindFile
	case unix.S_IFDIR:
		return guestapi.KindDir
	case unix.S_IFLNK:
		return guestapi.KindSymlink
	default:
		return guestapi.KindOther
	}
}

// Stat describes a file. It does not follow a symbolic link at the end of the path.
func (f *Files) Stat(_ context.Context, p, user string) (guestapi.FileInfo, error) {
	at, _, err := f.locate(p, user)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	return describe(at, f.Users.Names())
}

// List describes the entries of a directory, down to depth levels. A depth of 1 or less lists only the directory's
// own entries.
func (f *Files) List(ctx context.Context, p, user string, depth int) ([]guestapi.FileInfo, error) {
	at, _, err := f.locate(p, user)
	if err != nil {
		return nil, err
	}
	l := lister{names: f.Users.Names()}
	if err := l.walk(ctx, at, max(depth, 1)); err != nil {
		return nil, err
	}
	sort.Slice(l.all, func(i, j int) bool { return l.all[i].Path < l.all[j].Path })
	return l.all, nil
}

type lister struct {
	names *passwd.Names
	all   []guestapi.FileInfo
}

func (l *lister) walk(ctx context.Context, dir string, depth int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, unix.ENOENT) && len(l.all) > 0 {
			return nil // removed while the others were listed
		}
		return classify(err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		at := path.Join(dir, e.Name())
		if len(at) > guestapi.MaxPath {
			continue // no request could name it either
		}
		i, err := describe(at, l.names)
		if errors.Is(err, guestapi.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if len(l.all) == maxEntries {
			return fmt.Errorf(
				"%w: more than %d entries: list a smaller directory or depth",
				guestapi.ErrInvalid,
				maxEntries,
			)
		}
		l.all = append(l.all, i)
		if i.Kind == guestapi.KindDir && depth > 1 {
			if err := l.walk(ctx, at, depth-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// Move renames a file or directory. It makes missing parents.
func (f *Files) Move(_ context.Context, from, to, user string) (guestapi.FileInfo, error) {
	old, u, err := f.locate(from, user)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	at := ""
	if at, _, err = f.locate(to, user); err != nil {
		return guestapi.FileInfo{}, err
	}
	if _, err := describe(old, f.Users.Names()); err != nil {
		return guestapi.FileInfo{}, err
	}
	if err := makeDirs(path.Dir(at), &u); err != nil {
		return guestapi.FileInfo{}, err
	}
	if err := os.Rename(old, at); err != nil {
		return guestapi.FileInfo{}, classify(err)
	}
	return describe(at, f.Users.Names())
}

// Remove removes a file or directory. A directory that is not empty needs recursive.
func (f *Files) Remove(_ context.Context, p, user string, recursive bool) error {
	at, _, err := f.locate(p, user)
	if err != nil {
		return err
	}
	if at == "/" {
		return fmt.Errorf("remove /: %w", guestapi.ErrPermission)
	}
	if _, err := describe(at, f.Users.Names()); err != nil {
		return err
	}
	if recursive {
		return classify(os.RemoveAll(at))
	}
	return classify(os.Remove(at))
}

// MakeDir makes a directory with its parents.
func (f *Files) MakeDir(_ context.Context, p, user string) (guestapi.FileInfo, error) {
	at, u, err := f.locate(p, user)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	if i, err := describe(at, f.Users.Names()); err == nil {
		if i.Kind != guestapi.KindDir {
			return i, fmt.Errorf("%s: %w", at, guestapi.ErrNotDir)
		}
		return i, fmt.Errorf("%s: %w", at, guestapi.ErrExists)
	}
	if err := makeDirs(at, &u); err != nil {
		return guestapi.FileInfo{}, err
	}
	return describe(at, f.Users.Names())
}

// makeDirs makes dir with its parents. The directories it makes belong to u.
func makeDirs(dir string, u *passwd.User) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, unix.ENOENT) && dir != "/" {
		if err := makeDirs(path.Dir(dir), u); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	if errors.Is(err, unix.EEXIST) {
		if st, err := os.Stat(dir); err != nil || !st.IsDir() {
			return fmt.Errorf("%s: %w", dir, guestapi.ErrNotDir)
		}
		return nil
	}
	if err != nil {
		return classify(err)
	}
	return chown(dir, u)
}

// chown gives a new file to its user. If this program is not root, the file has the right owner already.
func chown(at string, u *passwd.User) error {
	if os.Getuid() != 0 {
		return nil
	}
	return classify(os.Lchown(at, int(u.UID), int(u.GID)))
}
