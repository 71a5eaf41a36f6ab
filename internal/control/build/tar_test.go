package build_test

import (
	"archive/tar"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
)

// tarOf returns an archive of files.
func tarOf(t *testing.T, files map[string]string) string {
	t.Helper()
	var out strings.Builder
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(files[name])),
			Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
