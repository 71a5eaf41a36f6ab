package pager_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/pager"
	"github.com/pandastack/pandastack/internal/host/pager/pagertest"
)

const pg = chunkstore.PageSize

// Zero pages in a trace are known without the store, and passed once, up to the limit.
func TestZeroRanges(t *testing.T) {
	t.Parallel()
	const size = 64*pg - 100
	memory := make([]byte, size)
	for _, page := range []int{3, 4, 40} {
		memory[page*pg] = 1
	}
	source := pagertest.New(map[string][]byte{"memory": memory})
	f, err := pager.NewFile(source, "memory", 0)
	if err != nil {
		t.Fatal(err)
	}
	trace := pager.Trace{
		{File: "memory", Offset: 40 * pg, Length: 3 * pg}, {File: "disk.img", Offset: 0, Length: pg},
		{File: "memory", Offset: 2 * pg, Length: 5 * pg}, {File: "memory", Offset: 62 * pg, Length: 100 * pg},
		{File: "memory", Offset: 1000 * pg, Length: pg}, {File: "memory", Offset: 3 * pg, Length: pg},
	}
	for limit, want := range map[int64][][2]int64{
		0:        nil,
		3 * pg:   {{41 * pg, 2 * pg}, {2 * pg, pg}},
		100 * pg: {{41 * pg, 2 * pg}, {2 * pg, pg}, {5 * pg, 2 * pg}, {62 * pg, 2*pg - 100}},
	} {
		var got [][2]int64
		f.ZeroRanges(trace, limit, func(off int64, data []byte) {
			got = append(got, [2]int64{off, int64(len(data))})
			if !bytes.Equal(data, memory[off:off+int64(len(data))]) {
				t.Errorf("ZeroRanges passed %d bytes at %d that are not zero", len(data), off)
			}
		})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("limit %d: ZeroRanges passed %v, want %v", limit, got, want)
		}
	}
	if asked, _ := source.Fetched(); asked != 0 {
		t.Errorf("fetched %d bytes, want none", asked)
	}
}

func TestWorkingSet(t *testing.T) {
	t.Parallel()
	const size = 64 * pg
	memory := pagertest.Pattern(size, func(page int) bool { return page%9 == 0 })
	trace := pager.Trace{
		{File: "memory", Offset: 40 * pg, Length: 3 * pg}, {File: "disk.img", Offset: 0, Length: pg},
		{File: "memory", Offset: 2 * pg, Length: 5 * pg}, {File: "memory", Offset: 60 * pg, Length: 100 * pg},
		{File: "memory", Offset: 1000 * pg, Length: pg}, {File: "memory", Offset: 20 * pg, Length: pg},
	}
	for limit, want := range map[int64]struct {
		bytes int64
		rest  pager.Trace
	}{
		0: {0, pager.Trace{trace[0], trace[1], trace[2], {File: "memory", Offset: 60 * pg, Length: 4 * pg}, trace[5]}},
		5 * pg: {5 * pg, pager.Trace{trace[1], {File: "memory", Offset: 4 * pg, Length: 3 * pg},
			{File: "memory", Offset: 60 * pg, Length: 4 * pg}, trace[5]}},
		100 * pg: {13 * pg, pager.Trace{trace[1]}},
	} {
		c, rest := trace.SplitWorkingSet("memory", size, limit)
		if c.Bytes() != want.bytes || !reflect.DeepEqual(rest, want.rest) {
			t.Errorf(
				"limit %d: got %d bytes and the rest %v, want %d and %v",
				limit/pg,
				c.Bytes(),
				rest,
				want.bytes,
				want.rest,
			)
		}
		f, err := pager.NewFile(pagertest.New(map[string][]byte{"memory": memory}), "memory", 0)
		if err != nil {
			t.Fatal(err)
		}
		var kept bytes.Buffer
		if err := f.WriteWorkingSet(t.Context(), c, &kept); err != nil || int64(kept.Len()) != c.Bytes() {
			t.Fatalf("WriteWorkingSet wrote %d bytes, %v; want the whole working set", kept.Len(), err)
		}
		// The pages arrive at their offsets however the content is cut.
		for _, step := range []int{pg, 3 * pg, 1 << 20} {
			pages := 0
			for at := 0; at < kept.Len(); at += step {
				c.Scatter(int64(at), kept.Bytes()[at:min(at+step, kept.Len())], func(off int64, data []byte) {
					pages += len(data) / pg
					if !bytes.Equal(data, memory[off:off+int64(len(data))]) {
						t.Errorf("limit %d, steps of %d: %d bytes at %d are wrong", limit/pg, step, len(data), off)
					}
				})
			}
			if int64(pages)*pg != c.Bytes() {
				t.Errorf("limit %d, steps of %d: got %d pages, want all", limit/pg, step, pages)
			}
		}
		c.Scatter(c.Bytes(), make([]byte, pg), func(int64, []byte) { t.Error("what is beyond has a place") })
	}
}
