package oci

import (
	"archive/tar"
	"bufio"
	"bytes"
	"io"
	"os"
	"path"
	"strings"
	"testing"
)

func fuzzSeed(f *testing.F, headers ...tar.Header) []byte {
	f.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return b.Bytes()
}

// FuzzLayers flattens two layers of arbitrary bytes and reads the result: every name is clean, unique and below a
// directory, and the target of every hard link comes before the link.
func FuzzLayers(f *testing.F) {
	f.Add(
		fuzzSeed(
			f,
			tar.Header{Typeflag: tar.TypeReg, Name: "d/a", Size: 3},
			tar.Header{Typeflag: tar.TypeLink, Name: "b", Linkname: "d/a"},
		),
		fuzzSeed(
			f,
			tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh.a"},
			tar.Header{Typeflag: tar.TypeReg, Name: "d/.wh..wh..opq"},
		),
	)
	f.Add(
		fuzzSeed(
			f,
			tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/x/../y"},
			tar.Header{Typeflag: tar.TypeDir, Name: "l/z/"},
		),
		fuzzSeed(
			f,
			tar.Header{Typeflag: tar.TypeDir, Name: "l/"},
			tar.Header{Typeflag: tar.TypeChar, Name: "l/c", Devmajor: 1},
		),
	)
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		memory := &memoryBudget{}
		memory.left.Store(1 << 20)
		tr := newTree(2000, memory)
		var layers []*unpacked
		for i, b := range [][]byte{lower, upper} {
			file, err := os.CreateTemp(t.TempDir(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			plain, end, err := decompress(bufio.NewReader(bytes.NewReader(b)))
			if err != nil {
				return
			}
			left := &budget{entries: 1000, bytes: 1 << 20, memory: memory}
			stream := newHashReader(&budgetReader{r: plain, budget: left, layer: 1 << 20})
			stream.copy = file
			records, err := index(stream, left)
			end()
			if err != nil {
				return
			}
			if err := tr.apply(i, records); err != nil {
				return
			}
			layers = append(layers, &unpacked{file, records})
		}
		var out bytes.Buffer
		if _, err := tr.write(t.Context(), layers, &out); err != nil {
			return
		}
		checkStream(t, &out)
	})
}

func checkStream(t *testing.T, r io.Reader) {
	kinds := map[string]byte{".": tar.TypeDir}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("the written stream cannot be read: %v", err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if name == "." {
			continue
		}
		if path.Clean("/"+name) != "/"+name || kinds[name] != 0 {
			t.Fatalf("got the name %q, want a clean and unique one", h.Name)
		}
		if kinds[path.Dir(name)] != tar.TypeDir {
			t.Fatalf("got %q before its directory", h.Name)
		}
		if h.Typeflag == tar.TypeLink && (kinds[h.Linkname] == 0 || kinds[h.Linkname] == tar.TypeDir) {
			t.Fatalf("got %q as a link to %q, want an earlier file", h.Name, h.Linkname)
		}
		kinds[name] = h.Typeflag
	}
}
