package chunkstore

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/os/disk"
)

// Known shared runs change how files are compared, and not the result.
func TestComparisonWithKnownRuns(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const pages = 2*chunkPages + 100
	old := make([]byte, pages*PageSize-1000)
	for i := range old {
		if (i/PageSize)%5 != 0 { // every fifth page is zero
			old[i] = byte(random.Uint32() | 1)
		}
	}
	for _, dirty := range []int{0, 3, 400, pages} {
		next := bytes.Clone(old)
		kept := make([]bool, pages)
		for i := range kept {
			kept[i] = true
		}
		for range dirty {
			page := random.IntN(pages)
			next[page*PageSize+5] ^= 0xff
			kept[page] = false
		}
		var runs []disk.Run
		for page := range pages {
			// the runs need not cover all unchanged pages
			if from := int64(page * PageSize); kept[page] && random.IntN(10) > 0 {
				if n := len(runs) - 1; n >= 0 && runs[n].To == from {
					runs[n].To += PageSize
				} else {
					runs = append(runs, disk.Run{From: from, To: from + PageSize})
				}
			}
		}
		c := &fileDiff{
			file:       tempFile(t, next),
			parent:     tempFile(t, old),
			size:       int64(len(next)),
			parentSize: int64(len(old)),
			same:       runs,
		}
		for off := int64(0); off < c.size; off += ChunkSize {
			p, err := c.compare(off)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range p.kinds {
				page := int(off/PageSize) + i
				end := min((page+1)*PageSize, len(next))
				content, was := next[page*PageSize:end], old[page*PageSize:end]
				switch {
				case k == zero && !bytes.Equal(content, zeroPage[:len(content)]):
					t.Fatalf("%d dirty: page %d has content, got kind zero", dirty, page)
				case k == same && !bytes.Equal(content, was):
					t.Fatalf("%d dirty: page %d differs from the parent's, got kind same", dirty, page)
				case k == changed && !bytes.Equal(p.pages(i, 1)[:len(content)], content):
					t.Fatalf("%d dirty: page %d changed, got other content", dirty, page)
				case k == changed && bytes.Equal(content, was) && (page+1)*PageSize <= len(old):
					t.Fatalf("%d dirty: page %d is unchanged, got kind changed", dirty, page)
				}
			}
			if p.ownChunk() {
				for i, k := range p.kinds {
					from := int(off) + i*PageSize
					to := min(from+PageSize, len(next))
					if k != zero && !bytes.Equal(p.pages(i, 1)[:to-from], next[from:to]) {
						t.Fatalf(
							"%d dirty: page %d of a part with its own chunk: got other content",
							dirty,
							from/PageSize,
						)
					}
				}
			}
		}
	}
}

func tempFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}
