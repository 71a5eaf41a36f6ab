//go:build root

package pager_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/disk"
	"github.com/pandastack/pandastack/internal/pager"
	"github.com/pandastack/pandastack/internal/pager/pagertest"
	"github.com/pandastack/pandastack/internal/probe"
	"github.com/pandastack/pandastack/internal/probe/probetest"
)

// xfs is a directory on an XFS image of its own, gone at the end of the test.
func xfs(t *testing.T) string {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Loop, probe.Tools)
	dir := filepath.Join(t.TempDir(), "data")
	if err := disk.MakeData(t.Context(), dir, 512<<20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.DropData(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// base writes what a snapshot's disk is, whole.
func base(t *testing.T, dir string, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(dir, "base")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := file(t, pagertest.New(map[string][]byte{"memory": data}), 0).Fill(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the filled file is another: %v", err)
	}
	return f
}

func TestDiskBecomesWhole(t *testing.T) {
	dir := xfs(t)
	data := pagertest.Pattern(16<<20, func(page int) bool { return page%300 > 200 })
	whole := base(t, dir, data)
	d, _, own := newDisk(t, dir, data)
	var want []byte
	var work sync.WaitGroup
	work.Go(func() { want = churn(t, d, data, 3, 4000) })
	if err := d.Complete(t.Context(), whole); err != nil {
		t.Fatal(err)
	}
	work.Wait()
	if !d.Whole() {
		t.Error("a complete disk is not whole")
	}
	got, err := os.ReadFile(own.Name())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file is not the disk: %v", err)
	}
}

// TestDiskIsCompletedByAnotherProcess has the first one end at any moment, with what it wrote in the file.
func TestDiskIsCompletedByAnotherProcess(t *testing.T) {
	dir := xfs(t)
	data := pagertest.Pattern(16<<20, func(page int) bool { return page%300 > 200 })
	whole := base(t, dir, data)
	d, _, own := newDisk(t, dir, data)
	want := churn(t, d, data, 5, 500)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Complete(ended, whole); err == nil {
		t.Error("completed although its context had ended")
	}
	for range 2 {
		if err := pager.CompleteFile(t.Context(), own, whole); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(own.Name())
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the file is not the disk: %v", err)
		}
	}
}
