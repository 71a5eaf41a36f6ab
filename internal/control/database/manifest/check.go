package manifest

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"strings"
)

// Checker reads a tar archive of a data directory and verifies it on the way.
type Checker struct {
	m     *Manifest
	tar   *tar.Reader
	file  *tar.Header // the current file
	sum   hash.Hash
	found map[string]bool
	count int
}

// Check returns a Checker of an archive.
func (m *Manifest) Check(archive io.Reader) *Checker {
	return &Checker{m: m, tar: tar.NewReader(archive), sum: sha256.New(), found: map[string]bool{}}
}

// unlisted are the files that no manifest lists: it cannot list itself, and does not list the log.
func unlisted(name string) bool {
	return name == "backup_manifest" || strings.HasPrefix(name, "pg_wal/")
}

// Next verifies the current file, and advances to the next directory or file. At the end of the archive, it returns
// io.EOF if every file of the manifest was there.
func (c *Checker) Next() (*tar.Header, error) {
	if err := c.finish(); err != nil {
		return nil, err
	}
	h, err := c.tar.Next()
	if err == io.EOF {
		for name := range c.m.Files {
			if !c.found[name] && !unlisted(name) {
				return nil, mismatch("the file %q is missing", name)
			}
		}
		return nil, io.EOF
	}
	if err != nil {
		return nil, invalid(err)
	}
	h.Name = strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
	if h.Name == "" && h.Typeflag == tar.TypeDir {
		h.Name = "."
	} else if err := checkName(h.Name); err != nil {
		return nil, err
	}
	if c.count++; c.count > 2*maxFiles {
		return nil, mismatch("the archive has more than %d entries", 2*maxFiles)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return h, nil
	case tar.TypeReg:
		return h, c.begin(h)
	}
	return nil, mismatch("%q is neither a file nor a directory", h.Name)
}

// invalid marks the errors of the archive's format as a mismatch; others are of the reader below.
func invalid(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return mismatch("the archive is damaged: %v", err)
	}
	return err
}

func (c *Checker) begin(h *tar.Header) error {
	if unlisted(h.Name) {
		return nil
	}
	want, ok := c.m.Files[h.Name]
	switch {
	case !ok:
		return mismatch("the file %q is not listed", h.Name)
	case c.found[h.Name]:
		return mismatch("the file %q is there twice", h.Name)
	case h.Size != want.Bytes:
		return mismatch("the file %q has %d bytes, want %d", h.Name, h.Size, want.Bytes)
	}
	c.found[h.Name], c.file = true, h
	c.sum.Reset()
	return nil
}

// Read reads the current file.
func (c *Checker) Read(p []byte) (int, error) {
	n, err := c.tar.Read(p)
	if c.file != nil {
		_, _ = c.sum.Write(p[:n]) // a hash accepts any input
	}
	if err != nil && err != io.EOF {
		err = invalid(err)
	}
	return n, err
}

// finish verifies the current file.
func (c *Checker) finish() error {
	if c.file == nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return err
	}
	name := c.file.Name
	c.file = nil
	if want := c.m.Files[name].SHA256; [sha256.Size]byte(c.sum.Sum(nil)) != want {
		return mismatch("the file %q has other content", name)
	}
	return nil
}
