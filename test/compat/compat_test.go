package compat

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the page from the records")

// TestPageIsCurrent compares the page with the records.
func TestPageIsCurrent(t *testing.T) {
	root := "../.."
	want, err := Page(root)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := writeChanged(filepath.Join(root, page), want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(filepath.Join(root, page))
	if err != nil || string(got) != string(want) {
		t.Errorf("%s differs from the records (%v): run make generate", page, err)
	}
}

// TestRecordsPass checks that no operation of a record has failed.
func TestRecordsPass(t *testing.T) {
	all, err := Records("../..")
	if err != nil || len(all) == 0 {
		t.Fatalf("Records() = %d records, %v; want some", len(all), err)
	}
	for _, r := range all {
		for _, o := range r.Operations {
			if !o.OK {
				t.Errorf("%s %s: %s fails, want all operations to pass", r.Client, r.Version, o.Name)
			}
		}
	}
}

func TestSave(t *testing.T) {
	root := t.TempDir()
	if err := Save(root, Record{Client: "@a/b", Version: "1.2.3"}); err == nil {
		t.Error("Save of a record without operations succeeded, want an error")
	}
	r := Record{
		Client:     "@a/b",
		Registry:   "npm",
		Version:    "1.2.3",
		Test:       "TestX",
		Operations: []Operation{{"one", true}, {"two", true}},
	}
	for _, tt := range []struct {
		ok         bool
		want, lack string
	}{{true, "all pass", "fails"}, {false, "**1 of 2 fail**", "all pass"}} {
		r.Operations[1].OK = tt.ok
		if err := Save(root, r); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil || !strings.Contains(string(text), tt.want) || strings.Contains(string(text), tt.lack) ||
			!strings.Contains(string(text), "`@a/b` (npm)") {
			t.Errorf("operation passes %v: page %s, %v; want %q and not %q", tt.ok, text, err, tt.want, tt.lack)
		}
	}
	if all, err := Records(root); err != nil || len(all) != 1 {
		t.Errorf("Records() = %d records, %v; want 1", len(all), err)
	}
}
