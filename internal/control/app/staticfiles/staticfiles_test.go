package staticfiles_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/staticfiles"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

func open(t *testing.T, limits staticfiles.Limits) (*staticfiles.Files, blob.Store, string) {
	t.Helper()
	store, err := blob.Open(t.Context(), "file://"+t.TempDir(), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	dir := t.TempDir()
	return staticfiles.New(store, dir, limits), store, dir
}

// archive returns a tar archive of headers; a header without a size gets the content.
func archive(t *testing.T, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		content := h.Uname // carries the content in these tests
		h.Uname, h.Size, h.Mode = "", int64(len(content)), 0o644
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: content}
}

func TestStore(t *testing.T) {
	f, store, dir := open(t, staticfiles.Limits{})
	long := strings.Repeat("body { color: red }\n", 1000)
	err := f.Store(t.Context(), "dpl1", archive(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./"}, file("./index.html", "hello"), file("a/b.css", long),
		file("c.png", long), file("empty.txt", ""), file(".git/config", "x"), file("a/.env", "x"),
		file(".well-known/x", "known")))
	if err != nil {
		t.Fatal(err)
	}
	set, err := f.Open(t.Context(), "dpl1")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"index.html": "hello", "a/b.css": long, "c.png": long, "empty.txt": "", ".well-known/x": "known",
	} {
		e, ok := set.Lookup(name)
		if !ok {
			t.Errorf("%s is missing", name)
			continue
		}
		for encoding, part := range e.Parts {
			var r io.Reader = set.Reader(t.Context(), part)
			switch encoding {
			case staticfiles.Gzip:
				if r, err = gzip.NewReader(r); err != nil {
					t.Fatal(err)
				}
			case staticfiles.Zstd:
				if r, err = zstd.NewReader(r); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := io.ReadAll(r); err != nil || string(got) != want {
				t.Errorf("%s %s: %d bytes %v, want %d", name, encoding, len(got), err, len(want))
			}
		}
		if compressed := name == "a/b.css"; compressed != (len(e.Parts) == 3) {
			t.Errorf("%s has the contents %v", name, e.Parts)
		}
	}
	for _, name := range []string{".git/config", "a/.env", "", "a", "./index.html", "../dpl1/index.html"} {
		if _, ok := set.Lookup(name); ok {
			t.Errorf("%q is there", name)
		}
	}
	e, _ := set.Lookup("a/b.css")
	r := set.Reader(t.Context(), e.Parts[staticfiles.Identity])
	if _, err := r.Seek(-5, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != "red }\n"[1:] {
		t.Errorf("end of the file: %q %v", got, err)
	}
	if err := f.Delete(t.Context(), "dpl1"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Open(t.Context(), "dpl1"); !errors.Is(err, staticfiles.ErrNotFound) {
		t.Errorf("Open after Delete: %v", err)
	}
	err = store.List(t.Context(), "", func(i blob.Info) error { return errors.New("left: " + i.Key) })
	if err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("temporary files %v %v", left, err)
	}
}

// Hostile archives are refused with an error that names the entry, and nothing is kept.
func TestHostileArchives(t *testing.T) {
	big := strings.Repeat("x", 3000)
	for name, c := range map[string]struct {
		headers []tar.Header
		code    api.Code
		says    string
	}{
		"parent":    {[]tar.Header{file("../x", "x")}, api.Invalid, "../x"},
		"inside":    {[]tar.Header{file("a/../../x", "x")}, api.Invalid, "a/../../x"},
		"absolute":  {[]tar.Header{file("/etc/passwd", "x")}, api.Invalid, "/etc/passwd"},
		"backslash": {[]tar.Header{file(`a\b`, "x")}, api.Invalid, "a"},
		"symlink": {
			[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc/passwd"}}, api.Invalid, "link",
		},
		"hard link": {[]tar.Header{{Typeflag: tar.TypeLink, Name: "l", Linkname: "x"}}, api.Invalid, "l"},
		"device":    {[]tar.Header{{Typeflag: tar.TypeBlock, Name: "d"}}, api.Invalid, "d"},
		"twice":     {[]tar.Header{file("a", "x"), file("./a", "y")}, api.Invalid, "twice"},
		"large":     {[]tar.Header{file("a", big), file("b", big)}, api.TooLarge, "MiB"},
		"many": {
			[]tar.Header{file("a", ""), file("b", ""), file("c", ""), file("d", "")}, api.TooLarge, "3 static",
		},
		"long": {[]tar.Header{file(strings.Repeat("a/", 800)+"a", "")}, api.Invalid, "path"},
	} {
		t.Run(name, func(t *testing.T) {
			f, store, _ := open(t, staticfiles.Limits{Bytes: 5000, Files: 3})
			err := f.Store(t.Context(), "dpl1", archive(t, c.headers...))
			if api.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v (%s), want %s with %q", err, api.CodeOf(err), c.code, c.says)
			}
			err = store.List(t.Context(), "", func(i blob.Info) error { return errors.New("left: " + i.Key) })
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// An archive that ends early is refused, and so is one without end.
func TestBrokenArchives(t *testing.T) {
	f, _, _ := open(t, staticfiles.Limits{Bytes: 5000, Files: 3})
	whole := archive(t, file("a", strings.Repeat("x", 2000))).Bytes()
	if err := f.Store(t.Context(), "dpl1", bytes.NewReader(whole[:1500])); api.CodeOf(err) != api.Invalid {
		t.Errorf("an archive that ends early: %v", err)
	}
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	if err := f.Store(t.Context(), "dpl1", io.MultiReader(&head, zeros{})); api.CodeOf(err) != api.TooLarge {
		t.Errorf("a file of 1 TiB: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func FuzzStore(f *testing.F) {
	var seed bytes.Buffer
	w := tar.NewWriter(&seed)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a/b.css", Size: 1, Mode: 0o644})
	_, _ = w.Write([]byte("x"))
	_ = w.Close()
	f.Add(seed.Bytes())
	store, err := blob.Open(f.Context(), "file://"+f.TempDir(), blob.Options{})
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		files := staticfiles.New(store, dir, staticfiles.Limits{Bytes: 1 << 16, Files: 16})
		if err := files.Store(t.Context(), "dpl1", bytes.NewReader(data)); err != nil {
			if code := api.CodeOf(err); code != api.Invalid && code != api.TooLarge {
				t.Errorf("%v has the code %s", err, code)
			}
			return
		}
		if _, err := files.Open(t.Context(), "dpl1"); err != nil {
			t.Error(err)
		}
	})
}
