package pager_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
)

// newDisk returns a disk over data, somewhat larger.
func newDisk(t *testing.T, dir string, data []byte) (*pager.Disk, *pager.File, *os.File) {
	t.Helper()
	base, err := pager.NewFile(pagertest.New(map[string][]byte{"disk.img": data}), "disk.img", 0)
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Create(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	if err := own.Truncate(int64(len(data)) + 1<<20); err != nil {
		t.Fatal(err)
	}
	d, err := pager.NewDisk(base, own)
	if err != nil {
		t.Fatal(err)
	}
	return d, base, own
}

// writeRandomly reads and writes d at random and returns its expected content.
func writeRandomly(t *testing.T, d *pager.Disk, data []byte, seed uint64, rounds int) []byte {
	t.Helper()
	want := append(bytes.Clone(data), make([]byte, 1<<20)...)
	r := rand.New(rand.NewPCG(seed, 1))
	for range rounds {
		off := r.IntN(len(want) / 512)
		n := min(1+r.IntN(40), len(want)/512-off)
		off, n = off*512, n*512
		if r.IntN(2) == 0 {
			p := bytes.Repeat([]byte{byte(r.Uint32())}, n)
			if err := d.WriteAt(t.Context(), p, int64(off)); err != nil {
				t.Fatal(err)
			}
			copy(want[off:], p)
			continue
		}
		p := make([]byte, n)
		if err := d.ReadAt(t.Context(), p, int64(off)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, want[off:off+n]) {
			t.Fatalf("%d bytes at %d: got other content than was written", n, off)
		}
	}
	return want
}

func TestDiskReadsItsWrites(t *testing.T) {
	t.Parallel()
	data := pagertest.Pattern(4<<20, holes)
	d, _, _ := newDisk(t, t.TempDir(), data)
	want := writeRandomly(t, d, data, 7, 2000)
	got := make([]byte, len(want)+100)
	if err := d.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got[:len(want)], want) {
		t.Errorf("ReadAt of the whole disk: %v, or wrong content", err)
	}
	if err := d.WriteAt(t.Context(), make([]byte, 8192), d.Size()-4096); !errors.Is(err, unix.EFBIG) {
		t.Errorf("WriteAt beyond the end: got %v, want EFBIG", err)
	}
	if err := d.Sync(); err != nil {
		t.Error(err)
	}
}

// Sectors of the same pages are written concurrently.
func TestSectorsOfOnePage(t *testing.T) {
	t.Parallel()
	data := pagertest.Pattern(1<<20, nil)
	d, _, _ := newDisk(t, t.TempDir(), data)
	var work sync.WaitGroup
	for sector := range 8 {
		work.Go(func() {
			for page := range 64 {
				data := bytes.Repeat([]byte{byte(sector + 1)}, 512)
				if err := d.WriteAt(t.Context(), data, int64(page*4096+sector*512)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	got := make([]byte, 64*4096)
	if err := d.ReadAt(t.Context(), got, 0); err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if want := byte(i%4096/512 + 1); b != want {
			t.Fatalf("byte %d = %d, want %d", i, b, want)
		}
	}
}

func holes(page int) bool { return page%7 > 3 }
