package archive_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/guest/archive"
)

func put(t *testing.T, path, data string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), mode); err != nil {
		t.Fatal(err)
	}
}

// tree lists files below dir as "path mode content".
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			out = append(out, rel+" -> "+to)
		case d.Type().IsRegular():
			data, _ := os.ReadFile(p)
			info, _ := d.Info()
			out = append(out, rel+" "+info.Mode().String()+" "+string(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// me returns the owner that runs the test, so that the test needs no root.
func me() string { return itoa(os.Getuid()) + ":" + itoa(os.Getgid()) }

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

func TestPackAndUnpack(t *testing.T) {
	src := t.TempDir()
	put(t, filepath.Join(src, "dir", "a"), "A", 0o640)
	put(t, filepath.Join(src, "dir", "sub", "b"), "B", 0o755)
	put(t, filepath.Join(src, "one.txt"), "1", 0o600)
	put(t, filepath.Join(src, "two.txt"), "2", 0o600)
	if err := os.Symlink("a", filepath.Join(src, "dir", "link")); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		patterns []string
		dest     string
		have     string // a directory that exists before
		chmod    string
		want     []string
	}{
		"contents of a directory": {
			[]string{"dir"},
			"/new/app",
			"",
			"",
			[]string{"new/app/a -rw-r----- A", "new/app/link -> a", "new/app/sub/b -rwxr-xr-x B"},
		},
		"file-becomes-dest":   {[]string{"one.txt"}, "/x/name", "", "", []string{"x/name -rw------- 1"}},
		"file-into-slash":     {[]string{"one.txt"}, "/x/", "", "0644", []string{"x/one.txt -rw-r--r-- 1"}},
		"file-into-directory": {[]string{"one.txt"}, "/y", "y", "", []string{"y/one.txt -rw------- 1"}},
		"wildcard": {
			[]string{"*.txt"},
			"/z/",
			"",
			"",
			[]string{"z/one.txt -rw------- 1", "z/two.txt -rw------- 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stream bytes.Buffer
			var paths []string
			for _, p := range tc.patterns {
				paths = append(paths, filepath.Join(src, p))
			}
			if err := archive.Pack(&stream, paths); err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			if tc.have != "" {
				if err := os.Mkdir(filepath.Join(root, tc.have), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := archive.Unpack(
				&stream,
				archive.Options{Root: root, Dest: tc.dest, Chown: me(), Chmod: tc.chmod},
			); err != nil {
				t.Fatal(err)
			}
			if got := tree(t, root); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	if err := archive.Pack(io.Discard, []string{filepath.Join(src, "none*")}); err == nil ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("Pack of a pattern without a match: got error %v, want no such file", err)
	}
}

type entry struct {
	name, data, link string
	kind             byte
}

func tarOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		h := &tar.Header{
			Name:     e.name,
			Linkname: e.link,
			Typeflag: e.kind,
			Mode:     0o644,
			Size:     int64(len(e.data)),
			Uid:      os.Getuid(),
			Gid:      os.Getgid(),
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestUnpackRefusesBadStreams(t *testing.T) {
	for name, tc := range map[string]struct {
		opt  archive.Options
		from []entry
		want string
	}{
		"path leaves the archive": {
			archive.Options{Dest: "/d"},
			[]entry{{name: "d/../../x", data: "x"}},
			"leads out",
		},
		"absolute path": {
			archive.Options{Dest: "/d"},
			[]entry{{name: "/etc/x", data: "x"}},
			"leads out",
		},
		"neither d nor f": {
			archive.Options{Dest: "/d"},
			[]entry{{name: "x", data: "x"}},
			"neither d/<path> nor f/<name>",
		},
		"relative-dest": {archive.Options{Dest: "d"}, nil, "absolute"},
		"no-user":       {archive.Options{Dest: "/d", Chown: "nobody-here"}, nil, "chown"},
		"no-mode":       {archive.Options{Dest: "/d", Chmod: "rwx"}, nil, "octal"},
		"several files to one name": {
			archive.Options{Dest: "/d"},
			[]entry{{name: "f/a", data: "x"}, {name: "f/b", data: "x"}},
			"slash",
		},
		"hard link leaves the archive": {
			archive.Options{Dest: "/d/"},
			[]entry{{name: "d/l", kind: tar.TypeLink, link: "../x"}},
			"leads out",
		},
	} {
		root := t.TempDir()
		tc.opt.Root = root
		if tc.opt.Chown == "" {
			tc.opt.Chown = me()
		}
		err := archive.Unpack(bytes.NewReader(tarOf(t, tc.from...)), tc.opt)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got error %v, want one that contains %q", name, err, tc.want)
		}
	}
}

// FuzzUnpack checks that no stream crashes the program or makes it write outside of the destination: streams come
// from users, through the host.
func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, entry{name: "d/a", data: "x"}, entry{name: "f/b", data: "y"}))
	f.Add(tarOf(f, entry{name: "d/../../x", data: "x"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		// In a guest the target of a link is the guest's choice; here it must not leave the test directory.
		for r := tar.NewReader(bytes.NewReader(data)); ; {
			h, err := r.Next()
			if err != nil {
				break
			}
			if h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink {
				return
			}
		}
		_ = archive.Unpack(bytes.NewReader(data), archive.Options{Root: t.TempDir(), Dest: "/d/", Chown: me()})
	})
}
