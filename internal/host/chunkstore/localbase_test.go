package chunkstore_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

// Content shared with a local snapshot is read from its files, and only the rest from the store.
func TestReadWithLocalBase(t *testing.T) {
	f := newFixture(t, quickRetries)
	before, after := parentAndChild()
	path := file(t, before)
	base := f.pushMemory(chunkstore.Common, "base", before)
	m, _ := f.push(
		chunkstore.Push{Tenant: "ws", ID: "fork", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, after)}},
			Parent: base, ParentFiles: map[string]string{"memory": path}},
	)
	r := f.store.Reader(m, f.cache)
	if err := r.WithLocalBase(&chunkstore.Base{Manifest: base, Files: map[string]string{"memory": path}}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	shared := int64(0)
	for off := int64(0); off < int64(len(after)); {
		local, n := r.LocalCopy("memory", off)
		if n == 0 {
			off += chunkstore.PageSize
			continue
		}
		p := make([]byte, n)
		if _, err := local.ReadAt(p, off); err != nil || !bytes.Equal(p, after[off:off+n]) {
			t.Fatalf("%d bytes at %d: local copy has other content (%v)", n, off, err)
		}
		shared, off = shared+n, off+n
	}
	if differs := int64(len(after)) - shared; differs > 3<<20+300_000 { // two MiB of which are zero
		t.Errorf("%d bytes are not local, want only the difference", differs)
	}
	f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
		if c.Op == "get" {
			return blobtest.Fault{Err: blob.ErrDenied}
		}
		return blobtest.Fault{}
	})
	p := make([]byte, 1<<20)
	if err := r.Prefetch(t.Context(), []chunkstore.Range{{File: "memory", Length: 1 << 20}}); err != nil {
		t.Errorf("Prefetch of local content made a request: %v", err)
	}
	if err := r.ReadAt(t.Context(), "memory", p, 0); err != nil || !bytes.Equal(p, after[:1<<20]) {
		t.Errorf("ReadAt of local content: %v, or wrong content", err)
	}
	if err := r.ReadAt(t.Context(), "memory", p, 2<<20); err == nil {
		t.Error("ReadAt of the difference without the store: got nil, want an error")
	}
	f.objects.SetFaults(nil)
	for _, step := range []int{100_001, 4096, len(after)} {
		for off := 0; off < len(after); off += step {
			p := make([]byte, min(step, len(after)-off))
			if err := r.ReadAt(t.Context(), "memory", p, int64(off)); err != nil ||
				!bytes.Equal(p, after[off:off+len(p)]) {
				t.Fatalf("%d bytes at %d: got other content than was pushed (%v)", len(p), off, err)
			}
		}
	}
}

// A missing file, or one that does not match its manifest, is an error before anything is read.
func TestUnsuitableLocalBaseIsRefused(t *testing.T) {
	f := newFixture(t, quickRetries)
	data := blobtest.Content(1, 1<<20)
	base := f.pushMemory("ws", "base", data)
	m, _ := f.push(
		chunkstore.Push{Tenant: "ws", ID: "fork", Files: []chunkstore.LocalFile{{Name: "memory", Path: file(t, data)}}},
	)
	deleted := file(t, data)
	if err := os.Remove(deleted); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"short": file(t, data[:len(data)-1]), "gone": deleted} {
		local := &chunkstore.Base{Manifest: base, Files: map[string]string{"memory": path}}
		if err := f.store.Reader(m, f.cache).WithLocalBase(local); err == nil {
			t.Errorf("WithLocalBase, %s: got nil, want an error", name)
		}
	}
	r := f.store.Reader(m, f.cache)
	other := &chunkstore.Base{Manifest: base, Files: map[string]string{"other": deleted}}
	if err := r.WithLocalBase(other); err != nil {
		t.Error(err)
	}
	if _, n := r.LocalCopy("memory", 0); n != 0 {
		t.Errorf("LocalCopy = %d bytes of a file that the base does not have, want 0", n)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// Content that a guest wrote is on its disk and in its memory. It is sent once, whether its parts are stored
// as whole chunks or packed, and reads back completely.
func TestEqualPagesOfAPushAreSentOnce(t *testing.T) {
	f := newFixture(t, quickRetries)
	old := blobtest.Content(1, 12<<20)
	for name, n := range map[string]int{"packed": 900_000, "as-a-whole": 9 << 20} {
		t.Run(name, func(t *testing.T) {
			written := blobtest.Content(uint64(n), n)
			memory, disk := bytes.Clone(old), bytes.Clone(old)
			copy(disk[1<<20+4096:], written)
			for page := 0; (page+1)*chunkstore.PageSize <= n; page++ { // where the guest's kernel found free memory
				copy(
					memory[(page^5)*chunkstore.PageSize:],
					written[page*chunkstore.PageSize:(page+1)*chunkstore.PageSize],
				)
			}
			base, _ := f.push(
				chunkstore.Push{
					Tenant: "ws",
					ID:     chunkstore.ID("base" + name[:1]),
					Files: []chunkstore.LocalFile{
						{Name: "memory", Path: file(t, old)},
						{Name: "disk", Path: file(t, old)},
					},
				},
			)
			m, stats := f.push(chunkstore.Push{Tenant: "ws", ID: chunkstore.ID("next" + name[:1]),
				Files: []chunkstore.LocalFile{
					{Name: "memory", Path: file(t, memory)},
					{Name: "disk", Path: file(t, disk)},
				},
				Parent: base, ParentFiles: map[string]string{"memory": file(t, old), "disk": file(t, old)}})
			if most := int64(n) + 200_000; stats.Uploaded > most {
				t.Errorf("uploaded %d bytes, want at most %d", stats.Uploaded, most)
			}
			if least := int64(2*n) - 50_000; stats.DirtyBytes < least {
				t.Errorf("DirtyBytes = %d, want at least %d", stats.DirtyBytes, least)
			}
			for _, m := range []*chunkstore.Manifest{m, f.open("ws", m.ID)} {
				f.wantFile(m, "memory", memory)
				f.wantFile(m, "disk", disk)
			}
		})
	}
}
