package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
)

// indexed lists the entries of a layer with a budget of memory, and returns what is left of the budget.
func indexed(b []byte, bytes64 int64) ([]record, *memoryBudget, error) {
	memory := &memoryBudget{}
	memory.left.Store(bytes64)
	left := &budget{entries: math.MaxInt32, bytes: math.MaxInt64, memory: memory}
	records, err := index(newHashReader(bytes.NewReader(b)), left)
	return records, memory, err
}

// bulk returns a layer of n entries with names of some length, in as many directories as files if deep is set.
func bulk(t *testing.T, n int, deep bool, pax map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		name := fmt.Sprintf("usr/lib/some/directory/of/a/package/%d/file-%d", i/100, i)
		if deep {
			name = fmt.Sprintf("%d/a/b/c/d/e/f/g/h", i)
		}
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, PAXRecords: pax, Format: tar.FormatPAX})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestIndexMemory measures the memory of the entries of layers against what the budget was charged.
func TestIndexMemory(t *testing.T) {
	for name, b := range map[string][]byte{
		"files":       bulk(t, 100_000, false, nil),
		"directories": bulk(t, 10_000, true, nil),
		"attributes":  bulk(t, 5_000, false, map[string]string{xattrPrefix + "user.x": strings.Repeat("x", 5000)}),
	} {
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		const all = 1 << 30
		before := heap()
		records, memory, err := indexed(b, all)
		if err != nil {
			t.Fatal(err)
		}
		tr := newTree(math.MaxInt32, memory)
		if err := tr.apply(0, records); err != nil {
			t.Fatal(err)
		}
		used, charged := heap()-before, all-memory.left.Load()
		if used > charged {
			t.Errorf("%s: the entries use %d bytes, but the budget was charged %d", name, used, charged)
		}
		runtime.KeepAlive(tr)
		runtime.KeepAlive(records)
	}
}

func TestIndexBudget(t *testing.T) {
	attribute := func(size int) map[string]string {
		return map[string]string{xattrPrefix + "user.x": strings.Repeat("x", size)}
	}
	if _, _, err := indexed(bulk(t, 1, false, attribute(60<<10)), 1<<20); err != nil {
		t.Errorf("60 KiB of attributes: %v", err)
	}
	if _, _, err := indexed(bulk(t, 1, false, attribute(64<<10)), 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("more than 64 KiB of attributes: got %v, want ErrTooLarge", err)
	}
	_, memory, err := indexed(bulk(t, 100, false, attribute(60<<10)), 1<<20)
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("many attributes: got %v, want ErrTooLarge", err)
	}
	if left := memory.left.Load(); left != 1<<20 {
		t.Errorf("%d bytes of the budget are left after the error, want all", left)
	}
	records, memory, err := indexed(bulk(t, 1000, true, nil), 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := newTree(math.MaxInt32, memory).apply(0, records); !errors.Is(err, ErrTooLarge) {
		t.Errorf("directories that no entry describes: got %v, want ErrTooLarge", err)
	}
}
