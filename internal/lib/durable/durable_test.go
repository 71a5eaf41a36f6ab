package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
