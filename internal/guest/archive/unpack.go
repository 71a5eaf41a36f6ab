package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Options are the options of Unpack.
type Options struct {
	Root  string // "/" except in tests
	Dest  string // absolute; a trailing slash makes it a directory
	Chown string // "user" or "user:group", names or numbers; "": as in the stream
	Chmod string // octal; "": as in the stream
}

// MaxName is the maximum length of a path in a stream, in bytes.
const MaxName = 4096

// Unpack extracts a stream written by Pack to opt.Dest. It stops at the first error and keeps the files it has
// written by then.
func Unpack(r io.Reader, opt Options) error {
	if !path.IsAbs(opt.Dest) || strings.ContainsRune(opt.Dest, 0) {
		return fmt.Errorf("destination %q is not an absolute path", opt.Dest)
	}
	u := unpacker{opt: opt, dest: filepath.Join(opt.Root, opt.Dest), mode: -1}
	if err := u.prepare(); err != nil {
		return err
	}
	return u.entries(tar.NewReader(r), u.stream)
}

type unpacker struct {
	opt      Options
	dest     string
	uid, gid int
	mode     int64 // -1: as in the stream
	single   bool  // a file was written as dest itself
}

func (u *unpacker) prepare() (err error) {
	if u.opt.Chown != "" {
		if u.uid, u.gid, err = owner(u.opt.Root, u.opt.Chown); err != nil {
			return err
		}
	}
	if u.opt.Chmod != "" {
		if u.mode, err = strconv.ParseInt(u.opt.Chmod, 8, 32); err != nil || u.mode > 0o7777 {
			return fmt.Errorf("chmod: %q is not an octal mode", u.opt.Chmod)
		}
	}
	if strings.HasSuffix(u.opt.Dest, "/") {
		return u.makeDirs(u.dest)
	}
	return nil
}

// makeDirs makes a directory with its parents. The directories it makes belong to the requested owner.
func (u *unpacker) makeDirs(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", dir)
		}
		return nil
	}
	if up := filepath.Dir(dir); up != dir {
		if err := u.makeDirs(up); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Chmod(dir, 0o755), os.Lchown(dir, u.uid, u.gid))
}

// entries passes each entry of an archive, with a clean relative name, to put.
func (u *unpacker) entries(in *tar.Reader, put func(h *tar.Header, r io.Reader) error) error {
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		name := path.Clean(h.Name)
		if len(name) > MaxName || !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
			return fmt.Errorf("path %.80q leads out of the archive", h.Name)
		}
		h.Name = name
		if err := put(h, in); err != nil {
			return fmt.Errorf("%.200s: %w", name, err)
		}
	}
}

// stream extracts one entry of a stream written by Pack.
func (u *unpacker) stream(h *tar.Header, r io.Reader) error {
	kind, rest, _ := strings.Cut(h.Name, "/")
	switch {
	case kind == "d" && h.Typeflag == tar.TypeDir && rest == "":
		return u.makeDirs(u.dest)
	case kind == "d" && rest != "":
		return u.put(filepath.Join(u.dest, rest), h, r)
	case kind == "f" && rest != "" && !strings.Contains(rest, "/"):
		return u.file(rest, h, r)
	}
	return errors.New("entry is neither d/<path> nor f/<name>")
}

// file extracts a single copied file: into dest if that is a directory, otherwise as dest.
func (u *unpacker) file(name string, h *tar.Header, r io.Reader) error {
	if info, err := os.Stat(u.dest); err == nil && info.IsDir() {
		return u.put(filepath.Join(u.dest, name), h, r)
	}
	if u.single {
		return fmt.Errorf("cannot copy several files to %s: end the destination with a slash", u.opt.Dest)
	}
	u.single = true
	return u.put(u.dest, h, r)
}

// put extracts one entry to the path to.
func (u *unpacker) put(to string, h *tar.Header, r io.Reader) error {
	if err := u.makeDirs(filepath.Dir(to)); err != nil {
		return err
	}
	uid, gid := u.uid, u.gid
	if u.opt.Chown == "" {
		uid, gid = h.Uid, h.Gid
	}
	mode := h.FileInfo().Mode()
	if u.mode >= 0 {
		mode = tarMode(u.mode)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.makeDirs(to); err != nil {
			return err
		}
		return errors.Join(os.Lchown(to, uid, gid), os.Chmod(to, mode))
	case tar.TypeReg:
		return u.write(to, mode, uid, gid, r)
	case tar.TypeSymlink:
		if err := removeExisting(to); err != nil {
			return err
		}
		return errors.Join(os.Symlink(h.Linkname, to), os.Lchown(to, uid, gid))
	case tar.TypeLink:
		if !filepath.IsLocal(h.Linkname) {
			return fmt.Errorf("hard link to %.80q leads out of the archive", h.Linkname)
		}
		if err := removeExisting(to); err != nil {
			return err
		}
		return os.Link(filepath.Join(u.dest, h.Linkname), to)
	}
	return nil // devices and pipes are not copied
}

func tarMode(mode int64) os.FileMode {
	return (&tar.Header{Mode: mode}).FileInfo().
		Mode().
		Perm() |
		(&tar.Header{Mode: mode, Typeflag: tar.TypeReg}).FileInfo().
			Mode()&
			(os.ModeSetuid|os.ModeSetgid|os.ModeSticky)
}

// removeExisting removes the file that a new one replaces. A directory stays, and is an error.
func removeExisting(to string) error {
	info, err := os.Lstat(to)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return errors.New("a directory with this name exists")
	}
	return os.Remove(to)
}

func (u *unpacker) write(to string, mode os.FileMode, uid, gid int, r io.Reader) error {
	if err := removeExisting(to); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = errors.Join(f.Chown(uid, gid), f.Chmod(mode.Perm()|mode&(os.ModeSetuid|os.ModeSetgid|os.ModeSticky)))
	}
	return errors.Join(err, f.Close())
}
