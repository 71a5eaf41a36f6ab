//go:build root

package pager_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
)

// base writes the complete disk of a snapshot.
func base(t *testing.T, dir string, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(dir, "base")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	from := file(t, pagertest.New(map[string][]byte{"memory": data}), 0)
	if err := from.Hydrate(t.Context(), f, enoughSpace); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("hydrated file: %v, or wrong content", err)
	}
	return f
}

func TestDiskHydrate(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	data := pagertest.Pattern(16<<20, func(page int) bool { return page%300 > 200 })
	whole := base(t, dir, data)
	d, _, own := newDisk(t, dir, data)
	var want []byte
	var work sync.WaitGroup
	work.Go(func() { want = writeRandomly(t, d, data, 3, 4000) })
	if err := d.Hydrate(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if !d.IsLocal() {
		t.Error("IsLocal() of a hydrated disk = false, want true")
	}
	got, err := os.ReadFile(own.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("own file of a hydrated disk: %v, or wrong content", err)
	}
}

// The first process ends at any moment, with its writes in the file.
func TestHydrateFileAfterRestart(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	data := pagertest.Pattern(16<<20, func(page int) bool { return page%300 > 200 })
	whole := base(t, dir, data)
	d, _, own := newDisk(t, dir, data)
	want := writeRandomly(t, d, data, 5, 500)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Hydrate(ended, whole); err == nil {
		t.Error("Hydrate with an ended context: got nil, want an error")
	}
	for range 2 {
		if err := pager.HydrateFile(t.Context(), own, whole); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(own.Name())
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("own file after HydrateFile: %v, or wrong content", err)
		}
	}
}

// Content of a local copy is neither fetched nor written: the hydrated file shares its blocks.
func TestHydrateSharesLocalContent(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	data := pagertest.Pattern(8<<20, func(page int) bool { return page%300 > 200 })
	local := base(t, dir, data)
	changed := bytes.Clone(data)
	const from, to = 1<<20 + 3*4096, 6<<20 + 5*4096
	copy(changed, pagertest.Pattern(from, nil))
	source := pagertest.New(map[string][]byte{"memory": changed})
	source.SetLocalCopy(local, from, to)
	path := filepath.Join(dir, "filled")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	whole := file(t, source, 0)
	if !whole.IsCached(from, to-from) || whole.IsCached(0, 4096) {
		t.Error("IsCached: want true for the local copy and false elsewhere")
	}
	if err := whole.Hydrate(t.Context(), f, enoughSpace); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, changed) {
		t.Fatalf("hydrated file: wrong content (%v)", err)
	}
	if asked, _ := source.Fetched(); asked > int64(len(data))-(to-from)+2*128<<10 {
		t.Errorf("Hydrate fetched %d bytes, want only those outside of the local copy", asked)
	}
	same, err := disk.SharedRuns(f, local)
	if err != nil {
		t.Fatal(err)
	}
	shared := int64(0)
	for _, r := range same {
		shared += r.To - r.From
	}
	if shared < (to-from)/2 { // a third of it is holes
		t.Errorf("%d bytes are shared, want those of the local copy", shared)
	}
}
