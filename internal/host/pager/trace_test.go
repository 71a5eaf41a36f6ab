package pager_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/host/pager"
)

func TestTraceRoundTrip(t *testing.T) {
	t.Parallel()
	want := pager.Trace{
		{File: "memory", Offset: 5 << 20, Length: 8192}, {File: "disk.img", Offset: 0, Length: 4096},
		{File: "memory", Offset: 4096, Length: 4096}, {File: "memory", Offset: 1 << 40, Length: 1 << 20},
	}
	data := want.Encode()
	got, err := pager.DecodeTrace(data)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("DecodeTrace = %v, %v; want the encoded trace", got, err)
	}
	if got.Bytes() != 8192+4096+4096+1<<20 {
		t.Errorf("Bytes() = %d, want the sum of the ranges", got.Bytes())
	}
	for i := range data {
		bad := slices.Clone(data)
		bad[i] ^= 0x10
		if _, err := pager.DecodeTrace(bad); err == nil {
			t.Errorf("DecodeTrace with byte %d changed: got nil, want an error", i)
		}
		if _, err := pager.DecodeTrace(data[:i]); err == nil {
			t.Errorf("DecodeTrace of the first %d bytes: got nil, want an error", i)
		}
	}
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	r := pager.NewRecorder(pager.Trace{{File: "memory", Offset: 0, Length: 8192}})
	r.Record("memory", 4096, 12288) // begins with a known page
	r.Record("memory", 16384, 4096) // directly after the last range
	r.Record("memory", 8000, 10)
	r.Record("disk.img", 100, 1)
	r.Record("memory", 1<<20, 0)
	r.Record("memory", -1, 10)
	want := pager.Trace{{File: "memory", Offset: 8192, Length: 12288}, {File: "disk.img", Offset: 0, Length: 4096}}
	if got := r.Stop(); !reflect.DeepEqual(got, want) {
		t.Errorf("trace = %v, want %v", got, want)
	}
	r.Record("memory", 1<<20, 4096)
	if got := r.Stop(); len(got) != 2 {
		t.Errorf("trace after Stop = %v, want 2 ranges", got)
	}
	var none *pager.Recorder
	none.Record("memory", 0, 1)
}

func FuzzDecodeTrace(f *testing.F) {
	f.Add(
		pager.Trace{
			{File: "memory", Offset: 5 << 20, Length: 8192},
			{File: "disk.img", Offset: 0, Length: 4096},
		}.Encode(),
	)
	f.Add(pager.Trace{}.Encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		// The checksum is no secret: the author of a trace can make it right.
		for _, data := range [][]byte{data, pager.FixChecksum(data)} {
			trace, err := pager.DecodeTrace(data)
			if err != nil {
				continue
			}
			for _, r := range trace {
				if r.Offset < 0 || r.Length <= 0 || r.Offset+r.Length < r.Offset ||
					(r.Offset|r.Length)%chunkstore.PageSize != 0 {
					t.Fatalf("DecodeTrace accepted range %+v", r)
				}
			}
			again, err := pager.DecodeTrace(trace.Encode())
			if err != nil || len(again) != len(trace) {
				t.Fatalf("trace %v became %v, %v after encoding", trace, again, err)
			}
		}
	})
}
