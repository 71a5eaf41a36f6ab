package sourcetree_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/cli/app/sourcetree"
)

// write makes the files of a directory. A content that begins with "-> " is a link.
func write(t *testing.T, files map[string]string) *os.Root {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(at, []byte(text), 0o644)
		if link, ok := strings.CutPrefix(text, "-> "); ok {
			err = errors.Join(os.Remove(at), os.Symlink(link, at))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// packed returns the names in the archive of a tree, and the contents of files.
func packed(t *testing.T, tree *sourcetree.Tree) map[string]string {
	t.Helper()
	var b bytes.Buffer
	if err := tree.Pack(&b); err != nil {
		t.Fatal(err)
	}
	plain, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for in := tar.NewReader(plain); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = string(text) + h.Linkname
	}
}

func TestTree(t *testing.T) {
	files := map[string]string{
		"index.js":  "x",
		"README.md": "x", ".git/config": "secret", "sub/.git": "gitdir: x",
		".env": "A=secret", ".env.local": "A=secret", "sub/.env.production": "A=secret", ".env.example": "A=",
		".pandastack/app.json": "{}", "node_modules/a/index.js": "x", "sub/node_modules/a": "x",
		"debug.log": "x", "keep.log": "x", "sub/debug.log": "x",
		"sub/.gitignore": "local.txt\n!debug.log\n", "sub/local.txt": "x", "local.txt": "x", "other/local.txt": "x",
		"build/out": "x", "sub/build/out": "x", "bin": "-> ../../etc/passwd",
		"docs/a.md": "x", "Dockerfile": "FROM x", "big.bin": "x", "tmp/x": "x",
		".gitignore":        "# comment\n\nnode_modules/\n*.log\r\n!keep.log\n/build\ntmp\n",
		".dockerignore":     "docs\nDockerfile\n**/README.md\n",
		".pandastackignore": "big.bin\n!tmp\n",
	}
	want := []string{
		".dockerignore", ".env.example", ".gitignore", ".pandastackignore", "Dockerfile", "bin", "index.js", "keep.log",
		"local.txt", "other/", "other/local.txt", "sub/", "sub/.gitignore", "sub/build/", "sub/build/out",
		"sub/debug.log", "tmp/", "tmp/x",
	}
	tree, err := sourcetree.Open(write(t, files).FS(), sourcetree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := packed(t, tree)
	names := make([]string, 0, len(got))
	for name, text := range got {
		names = append(names, name)
		if strings.Contains(text, "secret") {
			t.Errorf("%s has a secret", name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("got  %q\nwant %q", names, want)
	}
	if got["bin"] != "../../etc/passwd" {
		t.Errorf("the link: got %q, want it as it is", got["bin"])
	}
	slices.Sort(tree.Left)
	if left := []string{".env", ".env.local", "sub/.env.production"}; !slices.Equal(tree.Left, left) {
		t.Errorf("left out: got %q, want %q", tree.Left, left)
	}
	if tree.Files() != len(want)-4 || tree.Bytes == 0 {
		t.Errorf("got %d files with %d bytes", tree.Files(), tree.Bytes)
	}
}

// TestWhatIsAskedFor checks that the repository's data and files with variables are packed only if that is asked for.
func TestWhatIsAskedFor(t *testing.T) {
	root := write(t, map[string]string{".git/config": "x", ".env": "x", "a": "x"})
	tree, err := sourcetree.Open(root.FS(), sourcetree.Options{Git: true, Env: true})
	if err != nil {
		t.Fatal(err)
	}
	got := packed(t, tree)
	if len(got) != 4 || got[".git/config"] != "x" || got[".env"] != "x" || len(tree.Left) != 0 {
		t.Errorf("got %q, left out %q", got, tree.Left)
	}
}

// TestNoLinkIsFollowed checks that links to directories outside are not read.
func TestNoLinkIsFollowed(t *testing.T) {
	root := write(t, map[string]string{"a": "-> /etc", "b/c": "-> ../../.."})
	tree, err := sourcetree.Open(root.FS(), sourcetree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := packed(t, tree); len(got) != 3 || got["a"] != "/etc" || got["b/c"] != "../../.." {
		t.Errorf("got %q", got)
	}
}

// TestIgnoreFilesThatAreLinks checks that patterns are not read through links that lead out of the directory.
func TestIgnoreFilesThatAreLinks(t *testing.T) {
	root := write(t, map[string]string{"a": "x", ".gitignore": "-> /etc/passwd"})
	if _, err := sourcetree.Open(root.FS(), sourcetree.Options{}); err == nil {
		t.Error("a .gitignore outside of the directory was read")
	}
}

func TestBrokenIgnoreFile(t *testing.T) {
	root := write(t, map[string]string{".dockerignore": "[a"})
	_, err := sourcetree.Open(root.FS(), sourcetree.Options{})
	if err == nil || !strings.Contains(err.Error(), ".dockerignore") {
		t.Errorf("got %v, want an error that names the file", err)
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("*.log\n!a\n/b/**/c", "a/b\n!c")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, git, docker string) {
		for name, text := range map[string]string{".gitignore": git, ".dockerignore": docker, "a": "x"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		tree, err := sourcetree.Open(os.DirFS(dir), sourcetree.Options{})
		if err != nil {
			return
		}
		if err := tree.Pack(io.Discard); err != nil {
			t.Fatal(err)
		}
	})
}
