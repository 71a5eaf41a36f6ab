package imagebuild

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/image/recipe"
)

// archive makes a package in npm's format.
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	for _, h := range headers {
		h.Size = int64(len(h.Name))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write([]byte(h.Name))
			must(t, err)
		}
	}
	must(t, errors.Join(w.Close(), z.Close()))
	return out.Bytes()
}

func module(t testing.TB, names ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for _, n := range names {
		w, err := z.Create(n)
		must(t, err)
		_, err = w.Write([]byte("\x7fELF " + n))
		must(t, err)
	}
	must(t, z.Close())
	return out.Bytes()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path string, data []byte, mode fs.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, data, mode))
}

// programs puts stand-ins for the machine's npm and go first in PATH. Each copies an archive to where the real one
// would leave it and counts its calls.
func programs(t *testing.T, npm, mod []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, filepath.Join(dir, "p.tgz"), npm, 0o600)
	write(t, filepath.Join(dir, "m.zip"), mod, 0o600)
	write(t, filepath.Join(dir, "npm"), []byte(`#!/bin/sh
echo "$@" >> `+dir+`/calls
while [ "$1" != --pack-destination ]; do shift; done
cp `+dir+`/p.tgz "$2/scope-p-1.0.tgz"
`), 0o755)
	write(t, filepath.Join(dir, "go"), []byte(`#!/bin/sh
echo "$@" >> `+dir+`/calls
mkdir -p "$GOMODCACHE"
cp `+dir+`/m.zip "$GOMODCACHE/m.zip"
printf '{"Zip":"%s"}' "$GOMODCACHE/m.zip"
`), 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func sums(npm []byte, names ...string) (integrity, sum string) {
	a := sha512.Sum512(npm)
	list := ""
	for _, n := range names { // in order
		list += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte("\x7fELF "+n)), n)
	}
	b := sha256.Sum256([]byte(list))
	return "sha512-" + base64.StdEncoding.EncodeToString(a[:]), "h1:" + base64.StdEncoding.EncodeToString(b[:])
}

func TestParts(t *testing.T) {
	npm := archive(
		t,
		tar.Header{Name: "package/", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "package/bin/p", Mode: 0o755},
		tar.Header{Name: "package/README", Mode: 0o600},
	)
	mod := module(t, "m.example/m@v1.0.0/bin/m", "m.example/m@v1.0.0/x")
	integrity, sum := sums(npm, "m.example/m@v1.0.0/bin/m", "m.example/m@v1.0.0/x")
	dir := programs(t, npm, mod)
	r := recipe.Recipe{
		Files: map[string][]byte{"f": []byte("text"), recipe.CheckFile: []byte("proof")},
		Parts: []recipe.Part{
			{NPM: "@scope/p", Version: "1.0", Hash: integrity, To: "/opt/p"},
			{Go: "m.example/m", Version: "v1.0.0", Hash: sum, To: "/usr/local/m"},
			{File: "f", To: "/etc/f"},
		},
	}
	keep := filepath.Join(t.TempDir(), "keep")
	for range 2 { // the second round finds the archives in the cache
		root := t.TempDir()
		if _, err := addParts(t.Context(), r, root, t.TempDir(), keep, nil); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]string{
			"opt/p/bin/p":   "-rwxr-xr-x package/bin/p",
			"opt/p/README":  "-rw-r--r-- package/README",
			"usr/local/m/x": "-rwxr-xr-x \x7fELF m.example/m@v1.0.0/x",
			"etc/f":         "-rw-r--r-- text", recipe.CheckPath: "-rwxr-xr-x proof",
		} {
			data, err := os.ReadFile(filepath.Join(root, path))
			must(t, err)
			info, err := os.Stat(filepath.Join(root, path))
			must(t, err)
			if got := info.Mode().String() + " " + string(data); got != want {
				t.Errorf("%s: got %q, want %q", path, got, want)
			}
		}
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	if err != nil || strings.Count(string(calls), "\n") != 2 || !strings.Contains(string(calls), "--ignore-scripts") {
		t.Errorf("got calls %q, %v", calls, err)
	}
}

// TestPartsRefuseOtherContent checks that content that does not match the recipe's hash is neither used nor kept.
func TestPartsRefuseOtherContent(t *testing.T) {
	npm, mod := archive(t, tar.Header{Name: "package/a"}), module(t, "m.example/m@v1/a")
	programs(t, npm, mod)
	for _, p := range []recipe.Part{
		{NPM: "p", Version: "1.0", Hash: "sha512-other", To: "/p"},
		{Go: "m.example/m", Version: "v1", Hash: "h1:other", To: "/p"},
	} {
		root, keep := t.TempDir(), t.TempDir()
		_, err := addParts(t.Context(), recipe.Recipe{Parts: []recipe.Part{p}}, root, t.TempDir(), keep, nil)
		if !errors.Is(err, ErrHash) {
			t.Errorf("part %+v: got error %v, want ErrHash", p, err)
		}
		for _, dir := range []string{root, keep} {
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("got cache %v, %v, want it empty", left, err)
			}
		}
	}
}

func TestPartsReportMissingPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for program, p := range map[string]recipe.Part{
		"npm": {NPM: "p", Version: "1", To: "/p"},
		"Go":  {Go: "a.example/b", Version: "v1", To: "/p"},
	} {
		_, err := addParts(t.Context(), recipe.Recipe{Parts: []recipe.Part{p}}, t.TempDir(), t.TempDir(), t.TempDir(),
			nil)
		if err == nil || !strings.Contains(err.Error(), "install "+program) {
			t.Errorf("%s: got error %v", program, err)
		}
	}
	root := t.TempDir()
	_, err := addParts(t.Context(), recipe.Recipe{Parts: []recipe.Part{{PyPI: "r"}}}, root, t.TempDir(), t.TempDir(),
		nil)
	if err == nil || !strings.Contains(err.Error(), "add the package python3") {
		t.Errorf("a root without Python: got error %v", err)
	}
	must(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	must(t, os.Symlink("python3.12", filepath.Join(root, "usr/bin/python3")))
	if v, err := pythonOf(root); err != nil || v != "3.12" {
		t.Errorf("pythonOf: got %q, %v", v, err)
	}
}

func TestBatches(t *testing.T) {
	var pins, want []string
	for n := range 2*batch + 1 {
		pin := fmt.Sprintf("p%d==1 --hash=sha256:%d\n", n, n)
		if n == 3 {
			pin = "p3==1 \\\n--hash=sha256:a \\\n--hash=sha256:b\n"
		}
		pins = append(pins, pin)
	}
	for _, part := range [][]string{pins[:batch], pins[batch : 2*batch], pins[2*batch:]} {
		want = append(want, strings.Join(part, ""))
	}
	if got := batches("# pins\n\n" + strings.Join(pins, "") + "  # end"); !slices.Equal(got, want) {
		t.Errorf("batches: got %q, want %q", got, want)
	}
	if got := batches("--pre\na==1\n"); len(got) != 1 || got[0] != "--pre\na==1\n" {
		t.Errorf("batches of a file with more than pins: got %q", got)
	}
	if got := batches("# nothing\n"); len(got) != 0 {
		t.Errorf("batches of an empty file: got %q", got)
	}
}

// TestUnpackStaysInside checks that no entry of an archive, which comes from a registry, leaves the directory it is
// unpacked into, and that a link that another part left in the root does not lead out either.
func TestUnpackStaysInside(t *testing.T) {
	for name, data := range map[string][]byte{
		"parent":   archive(t, tar.Header{Name: "package/../../../escaped"}),
		"absolute": archive(t, tar.Header{Name: "/escaped"}),
		"symlink":  archive(t, tar.Header{Name: "package/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}),
		"hardlink": archive(t, tar.Header{Name: "package/l", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}),
		"device":   archive(t, tar.Header{Name: "package/d", Typeflag: tar.TypeBlock}),
		"bare":     archive(t, tar.Header{Name: "file"}),
	} {
		t.Run(name, func(t *testing.T) {
			outer := t.TempDir()
			root := filepath.Join(outer, "a", "root")
			must(t, os.MkdirAll(root, 0o755))
			file := filepath.Join(outer, "p.tgz")
			write(t, file, data, 0o600)
			r, err := os.OpenRoot(root)
			must(t, err)
			defer r.Close()
			err = newTree(t.Context(), r, "/opt/p").tgz(file)
			if found, _ := filepath.Glob(filepath.Join(outer, "*scaped")); err == nil || len(found) != 0 {
				t.Errorf("tgz: got error %v, files outside: %v", err, found)
			}
		})
	}
	outer := t.TempDir()
	root := filepath.Join(outer, "root")
	must(t, os.MkdirAll(root, 0o755))
	must(t, os.Symlink(outer, filepath.Join(root, "opt")))
	r, err := os.OpenRoot(root)
	must(t, err)
	defer r.Close()
	if err := newTree(t.Context(), r, "/opt").file("x", false, strings.NewReader("x")); err == nil {
		t.Error("tgz wrote through a link that leads out")
	}
}

func TestUnpackModuleStaysInside(t *testing.T) {
	for name, data := range map[string][]byte{"other": module(t, "n@v1/a"), "parent": module(t, "m@v1/../../a")} {
		root := t.TempDir()
		file := filepath.Join(t.TempDir(), "m.zip")
		write(t, file, data, 0o600)
		r, err := os.OpenRoot(root)
		must(t, err)
		if err := newTree(t.Context(), r, "/m").zip(file, "m@v1"); err == nil {
			t.Errorf("zip of %s: got no error", name)
		}
		must(t, r.Close())
	}
}

func TestUnpackEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	r, err := os.OpenRoot(t.TempDir())
	must(t, err)
	defer r.Close()
	if err := newTree(ctx, r, "/x").file("a", false, strings.NewReader("")); !errors.Is(err, cause) {
		t.Errorf("tgz: got error %v, want the context's cause", err)
	}
}

func FuzzTgz(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "package/a", Mode: 0o755}, tar.Header{Name: "package/b/c"}))
	f.Add(archive(f, tar.Header{Name: "package/../x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		outer := t.TempDir()
		root := filepath.Join(outer, "root")
		must(t, os.Mkdir(root, 0o755))
		file := filepath.Join(outer, "p.tgz")
		write(t, file, data, 0o600)
		r, err := os.OpenRoot(root)
		must(t, err)
		defer r.Close()
		_ = newTree(t.Context(), r, "/opt/p").tgz(file) // whatever it returns, no file may be outside
		if left, err := os.ReadDir(outer); err != nil || len(left) != 2 {
			t.Errorf("got files %v, %v", left, err)
		}
		if left, err := os.ReadDir(root); err != nil || len(left) > 1 {
			t.Errorf("got files %v, %v", left, err)
		}
	})
}

func FuzzModuleZip(f *testing.F) {
	f.Add(module(f, "m@v1/a", "m@v1/b/c"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		root := t.TempDir()
		file := filepath.Join(t.TempDir(), "m.zip")
		write(t, file, data, 0o600)
		r, err := os.OpenRoot(root)
		must(t, err)
		defer r.Close()
		_ = verifySum(file, "h1:x")
		_ = newTree(t.Context(), r, "/m").zip(file, "m@v1")
	})
}
