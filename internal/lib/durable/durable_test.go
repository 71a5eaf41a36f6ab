package durable_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/lib/durable"
)

type note struct {
	A int `json:"a"`
}

func TestJSONRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.json")
	for _, want := range []note{{1}, {2}} {
		if err := durable.WriteJSON(path, want); err != nil {
			t.Fatal(err)
		}
		var got note
		if err := durable.ReadJSON(path, &got); err != nil || got != want {
			t.Fatalf("ReadJSON: got %v, %v, want %v", got, err, want)
		}
	}
}

func TestReadJSONRefusesInvalidFiles(t *testing.T) {
	dir := t.TempDir()
	var n note
	if err := durable.ReadJSON(filepath.Join(dir, "none"), &n); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadJSON of a missing file: got error %v, want fs.ErrNotExist", err)
	}
	for name, text := range map[string]string{"unknown": `{"a":1,"b":2}`, "cut": `{"a":`, "two": `{"a":1}{"a":2}`} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := durable.ReadJSON(path, &n); err == nil {
			t.Errorf("%s: ReadJSON of %q: got no error", name, text)
		}
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, []byte("x"), 0o600); err == nil {
		t.Fatal("WriteFile over a directory: got no error")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("after a failed WriteFile: got entries %v, %v", entries, err)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "n.json")
	for _, want := range []string{"one", "two"} {
		if err := durable.Replace(path, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Fatalf("after Replace: got %q, %v, want %q", got, err, want)
		}
	}
	if err := durable.Sync(path); err != nil {
		t.Error(err)
	}
	if err := durable.Sync(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Sync of a missing file: got error %v, want fs.ErrNotExist", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "taken", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(filepath.Join(dir, "taken"), nil, 0o600); err == nil {
		t.Error("Replace of a directory: got no error")
	}
}

func TestRemoveAllAndSweep(t *testing.T) {
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.RemoveAll(tree); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".new-gone-x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := durable.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Fatalf("after Sweep: got entries %v, %v", entries, err)
	}
}

// TestKept checks that a file that was replaced and cut off reads as what was kept of it, and that a complete file is
// read whatever was kept.
func TestKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.json")
	var n note
	if kept, err := durable.ReadKeptJSON(path, &n); kept || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadKeptJSON of a missing file: %v, %v; want fs.ErrNotExist", kept, err)
	}
	replace := func(text string) {
		t.Helper()
		if err := durable.Replace(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(a int, kept bool) {
		t.Helper()
		var n note
		if got, err := durable.ReadKeptJSON(path, &n); err != nil || got != kept || n.A != a {
			t.Errorf("ReadKeptJSON: %d, kept %v, %v; want %d, kept %v", n.A, got, err, a, kept)
		}
	}
	replace("")
	if _, err := durable.ReadKeptJSON(path, &n); err == nil {
		t.Error("an empty file of which nothing was kept: got no error")
	}
	if err := durable.WriteKept(path, []byte(`{"a":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want(1, false)
	replace(`{"a":2}`)
	want(2, false)
	for _, cut := range []string{"", `{"a":`, "\x00\x00\x00"} {
		replace(cut)
		want(1, true)
	}
	replace(`{"b":3}`)
	if _, err := durable.ReadKeptJSON(path, &n); err == nil {
		t.Error("a complete file with unknown fields was passed over for what was kept")
	}
	replace(`{"a":4}`)
	for range 2 { // the second has nothing to do
		if err := durable.Keep(path); err != nil {
			t.Fatal(err)
		}
	}
	replace("")
	want(4, true)
}

// TestKeepWhileReplaced keeps a file from two sides while a third replaces it: what is kept is always complete.
func TestKeepWhileReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "n.json")
	if err := durable.WriteKept(path, []byte(`{"a":0}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 50 {
				if err := durable.Keep(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for n := range 200 {
		if err := durable.Replace(path, fmt.Appendf(nil, `{"a":%d}`, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	if err := durable.Keep(path); err != nil {
		t.Fatal(err)
	}
	if err := durable.Replace(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var n note
	if kept, err := durable.ReadKeptJSON(path, &n); err != nil || !kept || n.A != 199 {
		t.Errorf("ReadKeptJSON: %d, %v, %v; want 199, the last content that was kept", n.A, kept, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("the directory has %v, %v; want the file and what was kept of it", entries, err)
	}
}
