package pager_test

import (
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
)

// The first miss in a part of a file reads the whole part, once. Reads of cached content do not.
func TestMissReadsAhead(t *testing.T) {
	const size = 5<<19 + 4096 // two parts and a half
	source := pagertest.New(map[string][]byte{"memory": pagertest.Pattern(size, nil)})
	f, err := pager.NewFile(source, "memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, chunkstore.PageSize)
	for _, off := range []int64{0, 1 << 19, size - 4096, 4096, 2 << 20} {
		if err := f.ReadAt(t.Context(), p, off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil { // waits for readahead
		t.Fatal(err)
	}
	got := source.Prefetched()
	slices.SortFunc(got, func(a, b chunkstore.Range) int { return int(a.Offset - b.Offset) })
	want := []chunkstore.Range{
		{File: "memory", Offset: 0, Length: 1 << 20},
		{File: "memory", Offset: 2 << 20, Length: 1<<19 + 4096},
	}
	if !slices.Equal(got, want) {
		t.Errorf("prefetched %v, want %v", got, want)
	}
}
