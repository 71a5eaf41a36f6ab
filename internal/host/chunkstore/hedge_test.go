package chunkstore_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
	"github.com/pandastack/pandastack/internal/lib/blob/blobtest"
)

// noTimeout waits long for every read: only a second read notices that a store stalls.
var noTimeout = chunkstore.Config{Attempts: 1, ReadTimeout: time.Hour}

// seedHedge reads n frames, each with a request of its own, so that the usual duration is known.
func seedHedge(t *testing.T, r *chunkstore.Reader, n int) {
	t.Helper()
	for i := range n {
		if err := r.ReadAt(t.Context(), "memory", make([]byte, 4096), int64(i)*chunkstore.FrameSize); err != nil {
			t.Fatal(err)
		}
	}
}

// hedged runs do over a store that replies to a read after 20 ms, after n such reads.
func hedged(t *testing.T, n int, do func(t *testing.T, f *fixture, r *chunkstore.Reader, data []byte)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, noTimeout)
		data := blobtest.Content(1, 16<<20)
		m := f.pushMemory("ws", "a", data)
		s, err := chunkstore.New(blobtest.NewShaped(f.objects, 20*time.Millisecond, 0), f.ring, noTimeout)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := s.Reader(m, f.cache)
		seedHedge(t, r, n)
		do(t, f, r, data)
	})
}

// One read of many that gets no reply is repeated, and the original is canceled.
func TestLateReadIsMadeTwice(t *testing.T) {
	hedged(t, 60, func(t *testing.T, f *fixture, r *chunkstore.Reader, data []byte) {
		f.objects.SetFaults(
			func(c blobtest.Call) blobtest.Fault { return blobtest.Fault{Hang: c.Op == "get" && c.N == 0} },
		)
		start := time.Now()
		p := make([]byte, 4096)
		if err := r.ReadAt(t.Context(), "memory", p, 10<<20); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 45*time.Millisecond {
			t.Errorf("the read took %v, want 45 ms where a usual read takes 20 ms", took)
		}
		if !bytes.Equal(p, data[10<<20:10<<20+4096]) {
			t.Error("read other content than was pushed")
		}
		if n := f.objects.Count("get"); n != 2 {
			t.Errorf("got %d requests, want 2", n)
		}
	})
}

// A reply that stalls halfway is repeated, and a repetition that fails does not fail the original.
func TestStalledReadIsMadeTwice(t *testing.T) {
	hedged(t, 60, func(t *testing.T, f *fixture, r *chunkstore.Reader, data []byte) {
		f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
			if c.Op == "get" && c.N == 0 {
				return blobtest.Fault{Hang: true, Short: 100}
			}
			return blobtest.Fault{}
		})
		p := make([]byte, 4096)
		if err := r.ReadAt(t.Context(), "memory", p, 10<<20); err != nil || !bytes.Equal(p, data[10<<20:10<<20+4096]) {
			t.Errorf("ReadAt: %v, or wrong content", err)
		}
	})
}

// If the whole store stalls, not every read is repeated.
func TestSecondReadsAreFew(t *testing.T) {
	hedged(t, 60, func(t *testing.T, f *fixture, r *chunkstore.Reader, _ []byte) {
		var asked atomic.Int64
		f.objects.SetFaults(func(c blobtest.Call) blobtest.Fault {
			asked.Add(1)
			return blobtest.Fault{Hang: true}
		})
		var all sync.WaitGroup
		const reads = 40
		for i := range reads {
			all.Go(func() {
				off := int64(64+i) * chunkstore.FrameSize
				if err := r.ReadAt(t.Context(), "memory", make([]byte, 4096), off); err == nil {
					t.Error("ReadAt of a stalled store: got nil, want an error")
				}
			})
		}
		all.Wait()
		// 60 and 40 reads may save up five repetitions, and no more than four at a time.
		if n := asked.Load(); n <= reads || n > reads+5 {
			t.Errorf("got %d requests for %d reads, want one to five more than reads", n, reads)
		}
	})
}

// No read is repeated before the usual duration is known.
func TestFirstReadsAreMadeOnce(t *testing.T) {
	hedged(t, 3, func(t *testing.T, f *fixture, r *chunkstore.Reader, _ []byte) {
		f.objects.SetFaults(func(blobtest.Call) blobtest.Fault { return blobtest.Fault{Hang: true} })
		if err := r.ReadAt(t.Context(), "memory", make([]byte, 4096), 10<<20); err == nil {
			t.Error("ReadAt of a stalled store: got nil, want an error")
		}
		if n := f.objects.Count("get"); n != 1 {
			t.Errorf("got %d requests, want 1", n)
		}
	})
}
