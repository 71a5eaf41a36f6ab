package manifest

import (
	"archive/tar"
	"crypto/sha256"
	"io"
	"strings"
)

// Collect makes the manifest of a tar archive of a data directory, and lists the files in order.
func Collect(archive io.Reader) (*Manifest, []string, error) {
	m := &Manifest{Files: map[string]File{}}
	var names []string
	for t := tar.NewReader(archive); ; {
		h, err := t.Next()
		if err == io.EOF {
			return m, names, nil
		}
		if err != nil {
			return nil, nil, invalid(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		name := strings.TrimPrefix(h.Name, "./")
		if h.Typeflag != tar.TypeReg {
			return nil, nil, mismatch("%q is neither a file nor a directory", name)
		}
		if err := checkName(name); err != nil {
			return nil, nil, err
		}
		if _, ok := m.Files[name]; ok {
			return nil, nil, mismatch("the file %q is there twice", name)
		}
		if len(names) == maxFiles {
			return nil, nil, mismatch("the archive has more than %d files", maxFiles)
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, t); err != nil {
			return nil, nil, invalid(err)
		}
		m.Files[name] = File{h.Size, [sha256.Size]byte(sum.Sum(nil))}
		names = append(names, name)
	}
}

// Match returns an error unless found, the manifest of an archive, has the files of m and no others.
func (m *Manifest) Match(found *Manifest) error {
	for name, want := range m.Files {
		got, ok := found.Files[name]
		switch {
		case unlisted(name):
		case !ok:
			return mismatch("the file %q is missing", name)
		case got.Bytes != want.Bytes:
			return mismatch("the file %q has %d bytes, want %d", name, got.Bytes, want.Bytes)
		case got.SHA256 != want.SHA256:
			return mismatch("the file %q has other content", name)
		}
	}
	for name := range found.Files {
		if _, ok := m.Files[name]; !ok && !unlisted(name) {
			return mismatch("the file %q is not listed", name)
		}
	}
	return nil
}
