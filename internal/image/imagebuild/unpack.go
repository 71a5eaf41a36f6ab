package imagebuild

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Limits of an archive that becomes part of an image.
const (
	maxUnpacked = 8 << 30 // bytes
	maxEntries  = 200_000
)

// tree writes regular files below one directory of a root file system. It never leaves the root: a link in it that
// leads out is an error.
type tree struct {
	ctx     context.Context
	root    *os.Root
	to      string // relative to root
	made    map[string]bool
	entries int
	bytes   int64
}

func newTree(ctx context.Context, root *os.Root, to string) *tree {
	return &tree{ctx: ctx, root: root, to: strings.TrimPrefix(to, "/"), made: map[string]bool{}}
}

// file writes one file, readable by all, with the directories above it.
func (t *tree) file(name string, exec bool, r io.Reader) (err error) {
	if err := context.Cause(t.ctx); err != nil {
		return err
	}
	if t.entries++; t.entries > maxEntries {
		return fmt.Errorf("the archive has more than %d files", maxEntries)
	}
	if !fs.ValidPath(name) || name == "." {
		return fmt.Errorf("the archive has a file named %q", name)
	}
	at := path.Join(t.to, name)
	if err := t.parents(path.Dir(at)); err != nil {
		return err
	}
	mode := fs.FileMode(0o644)
	if exec {
		mode = 0o755
	}
	f, err := t.root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, io.LimitReader(r, maxUnpacked-t.bytes+1))
	if t.bytes += n; t.bytes > maxUnpacked {
		return fmt.Errorf("the archive unpacks into more than %d bytes", int64(maxUnpacked))
	}
	return errors.Join(err, f.Chmod(mode))
}

func (t *tree) parents(dir string) error {
	if t.made[dir] {
		return nil
	}
	if err := t.root.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	t.made[dir] = true
	return nil
}

// tgz unpacks an archive of npm. All its files are below one directory, which is removed from the names.
func (t *tree) tgz(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, below := strings.Cut(path.Clean(h.Name), "/")
		switch {
		case h.Typeflag == tar.TypeDir:
		case h.Typeflag != tar.TypeReg || !below || path.IsAbs(h.Name):
			return fmt.Errorf("the archive contains %q, which is not a file of a package", h.Name)
		default:
			if err := t.file(name, h.Mode&0o111 != 0, r); err != nil {
				return err
			}
		}
	}
}

// zip unpacks the archive of a Go module. All its files are below prefix, which is removed from the names. Such
// archives do not mark programs, so files that begin like programs become executable.
func (t *tree) zip(file, prefix string) error {
	z, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer z.Close()
	for _, e := range z.File {
		name, ok := strings.CutPrefix(e.Name, prefix+"/")
		if !ok {
			return fmt.Errorf("the archive contains %q, which is not below %s", e.Name, prefix)
		}
		if err := t.entry(e, name); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) entry(e *zip.File, name string) error {
	r, err := e.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	head = head[:n]
	exec := string(head) == "\x7fELF" || strings.HasPrefix(string(head), "#!")
	return t.file(name, exec, io.MultiReader(strings.NewReader(string(head)), r))
}
