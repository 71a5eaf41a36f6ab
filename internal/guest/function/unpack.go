package function

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// unpack writes the files of the bundle over those that are there. A bundle of one text becomes the entrypoint.
func (p Place) unpack(runtime, entrypoint string) error {
	bundle, err := os.Open(p.Bundle)
	if err != nil {
		return err
	}
	defer bundle.Close() //nolint:errcheck // it was only read
	if err := os.MkdirAll(p.Code, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(p.Code)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // each file was closed
	content, archive, err := fnruntime.OpenBundle(bundle)
	if err != nil {
		return err
	}
	if archive {
		return fnruntime.EachFile(content, func(name string, h *tar.Header, in io.Reader) error {
			return unpackOne(root, name, h, in)
		})
	}
	name, _, _ := strings.Cut(entrypoint, ":")
	if name == "" {
		if len(defaults[runtime]) == 0 {
			return fmt.Errorf("runtime %q is not known", runtime)
		}
		name = defaults[runtime][0]
	}
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if bytes.HasPrefix(data, []byte("#!")) || bytes.HasPrefix(data, []byte("\x7fELF")) {
		mode = 0o755
	}
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}
	return unpackOne(root, path.Clean(name), h, bytes.NewReader(data))
}

// unpackOne writes one entry. What is neither a file nor a directory nor a link is left out.
func unpackOne(root *os.Root, name string, h *tar.Header, in io.Reader) error {
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return fmt.Errorf("%w: %.200q leads out of it", fnruntime.ErrBundle, h.Name)
	}
	if name == "." {
		return nil
	}
	err := writeEntry(root, name, h, in)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it is cut off", fnruntime.ErrBundle)
	}
	if err != nil && strings.Contains(err.Error(), "path escapes from parent") { // os.Root has no sentinel
		return fmt.Errorf("%w: %.200q leads out of it through a symbolic link", fnruntime.ErrBundle, h.Name)
	}
	return err
}

func writeEntry(root *os.Root, name string, h *tar.Header, in io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
	default:
		return nil
	}
	if dir := path.Dir(name); dir != "." {
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		to := h.Linkname
		if path.IsAbs(to) || !filepath.IsLocal(path.Join(path.Dir(name), to)) {
			return fmt.Errorf("%w: the symbolic link %.200q leads out of it", fnruntime.ErrBundle, h.Name)
		}
		return root.Symlink(to, name)
	case tar.TypeLink:
		return root.Link(path.Clean(h.Linkname), name)
	}
	// Every file can be read by the handler's user, and none written.
	mode := fs.FileMode(h.Mode)&0o755 | 0o644
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Chmod(mode), f.Close())
}
