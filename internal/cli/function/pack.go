package function

import (
	"archive/tar"
	"compress/gzip"
	"io"
)

// packFile writes a compressed archive with one file.
func packFile(w io.Writer, name string, text []byte) error {
	z := gzip.NewWriter(w)
	out := tar.NewWriter(z)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	if _, err := out.Write(text); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return z.Close()
}
