//go:build root

package bake_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/disk/disktest"
	"github.com/pandastack/pandastack/internal/vmm"
)

// contentFixture is a fixture whose snapshots have content in common, on a file system that can share blocks.
type contentFixture struct {
	*fixture
	names        map[hostapi.MachineID]hostapi.TemplateName
	disks, rests map[hostapi.TemplateName][]byte
	mounts       map[hostapi.MachineID][]machine.BootDisk
}

func (w *contentFixture) Boot(ctx context.Context, req machine.Boot) (machine.View, error) {
	w.names[req.ID], w.mounts[req.ID] = req.Template, req.Data
	return w.fixture.Boot(ctx, req)
}

func (w *contentFixture) TakeSnapshot(ctx context.Context, id hostapi.MachineID, ref snapshot.Ref,
	change func(*snapshot.Snapshot), finish func(context.Context, *snapshot.Draft) error) (snapshot.Snapshot, error) {
	d, err := w.store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	name := w.names[id]
	snap := snapshot.Snapshot{Ref: ref, VCPUs: 1, MemoryMiB: 64}
	change(&snap)
	for _, m := range w.mounts[id] {
		snap.Data = append(snap.Data, m.DataDisk)
	}
	snap.Manifest.Files = []vmm.File{{Name: "memory", Bytes: int64(len(w.rests[name]))}}
	err = errors.Join(
		os.WriteFile(filepath.Join(d.ImageDir(), "memory"), w.rests[name], 0o600),
		os.WriteFile(d.DiskPath(), w.disks[name], 0o600),
	)
	for _, path := range d.DiskPaths(snap.Data)[1:] {
		err = errors.Join(err, os.WriteFile(path, w.disks[name], 0o600))
	}
	if err == nil {
		err = finish(ctx, d)
	}
	if err == nil {
		snap, err = d.Commit(snap)
	}
	return snap, errors.Join(err, w.store.Release(ref))
}

// Templates share the blocks of common content, memory files hold no pages of zeros, and no byte is changed.
func TestTemplatesShareDiskBlocks(t *testing.T) {
	dir := disktest.Dir(t, 512<<20)
	random := rand.NewChaCha8([32]byte{7})
	noise := func(n int) []byte {
		b := make([]byte, n)
		_, _ = random.Read(b) // never fails, by its documentation
		return b
	}
	const page = 4 << 10
	common, kernel, gap := noise(8<<20), noise(4<<20), make([]byte, 2<<20)
	w := &contentFixture{fixture: bareFixture(t, dir),
		mounts: map[hostapi.MachineID][]machine.BootDisk{}, names: map[hostapi.MachineID]hostapi.TemplateName{},
		disks: map[hostapi.TemplateName][]byte{}, rests: map[hostapi.TemplateName][]byte{}}
	var recipes []bake.Recipe
	for _, name := range []hostapi.TemplateName{"one", "two"} {
		w.disks[name] = bytes.Join([][]byte{noise(1 << 20), common, gap, noise(1 << 20)}, nil)
		w.rests[name] = bytes.Join(
			[][]byte{kernel, noise(page), make([]byte, page), noise(page), gap, noise(3 * page), make([]byte, page)},
			nil,
		)
		recipes = append(
			recipes,
			bake.Recipe{
				Name:      name,
				VCPUs:     1,
				MemoryMiB: 64,
				DiskMiB:   12,
				Disks:     data,
				Digest:    "0123456789abcdef" + string(name),
				Build:     w.build,
			},
		)
	}
	var err error
	if w.store, err = snapshot.Open(dir, disk.Usage, "snapshots", bake.Area, bake.PreMountArea); err != nil {
		t.Fatal(err)
	}
	w.baker, err = bake.New(bake.Config{
		Dir: filepath.Join(dir, "bake"), Recipes: recipes, Machines: w, Store: w.store,
		Platform: func(context.Context) (string, error) { return "p1", nil },
		Rewrite:  disk.Rewrite, Clone: disk.Clone, Share: disk.Dedup, PunchPages: disk.PunchPages,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.baker.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, r := range recipes {
		snap, _, err := w.baker.Ensure(t.Context(), r.Name)
		if err != nil {
			t.Fatal(err)
		}
		memory := filepath.Join(snap.Image().Dir, "memory")
		for path, want := range map[string][]byte{snap.DiskPath(): w.disks[r.Name],
			snap.DiskPaths()[1]: w.disks[r.Name], memory: w.rests[r.Name]} {
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("content of %s has changed: %v", path, err)
			}
		}
		if n := zeroPages(t, memory); n > 0 {
			t.Errorf("the memory of %s holds %d pages of zeros, want none", r.Name, n)
		}
	}
	list, err := w.baker.Templates(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("Templates() = %d templates, %v, want 2", len(list), err)
	}
	for _, tpl := range list {
		if most := tpl.ApparentBytes - int64(len(gap)); tpl.Bytes <= 0 || tpl.Bytes > most {
			t.Errorf("%s takes %d of %d bytes, want less", tpl.Name, tpl.Bytes, tpl.ApparentBytes)
		}
	}
	first, second := list[0], list[1]
	if alike := int64(2*len(common) + len(kernel)); second.Bytes > first.Bytes-alike {
		t.Errorf(
			"the second template takes %d bytes, the first %d: they share less than the %d that are alike",
			second.Bytes,
			first.Bytes,
			alike,
		)
	}
}

// zeroPages returns the number of pages of a file that take space and hold only zeros.
func zeroPages(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, page, none := 0, make([]byte, 4<<10), make([]byte, 4<<10)
	for end := int64(0); ; {
		from, err := f.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return n
		}
		if err == nil {
			end, err = f.Seek(from, unix.SEEK_HOLE)
		}
		for at := from; err == nil && at+int64(len(page)) <= end; at += int64(len(page)) {
			if _, err = f.ReadAt(page, at); bytes.Equal(page, none) {
				n++
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
