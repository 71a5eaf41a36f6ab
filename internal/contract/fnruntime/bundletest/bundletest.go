// Package bundletest makes bundles of functions for tests.
package bundletest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
)

// Tar returns a tar archive of pairs of names and texts.
//
// A name that ends with @ is a symbolic link to the text, one that ends with = a hard link. Files have a mode that a
// bundle must not give them.
func Tar(t testing.TB, files ...string) []byte {
	t.Helper()
	var to bytes.Buffer
	w := tar.NewWriter(&to)
	for i := 0; i < len(files); i += 2 {
		h := &tar.Header{Name: files[i], Mode: 0o4600, Size: int64(len(files[i+1])), Typeflag: tar.TypeReg}
		if name, ok := strings.CutSuffix(files[i], "@"); ok {
			h = &tar.Header{Name: name, Linkname: files[i+1], Typeflag: tar.TypeSymlink}
		} else if name, ok := strings.CutSuffix(files[i], "="); ok {
			h = &tar.Header{Name: name, Linkname: files[i+1], Typeflag: tar.TypeLink}
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

// Gzip returns data compressed.
func Gzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var to bytes.Buffer
	w := gzip.NewWriter(&to)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}
