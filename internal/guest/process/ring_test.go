package process

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

func newRing(total int64) *ring {
	r := &ring{budget: &budget{}}
	r.budget.left.Store(total)
	return r
}

// all reads all bytes that are kept.
func all(r *ring) (b []byte, from int64) {
	from = r.start
	buf := make([]byte, 1000)
	for at := r.start; ; {
		n, _ := r.get(buf, at)
		if n == 0 {
			return b, from
		}
		b = append(b, buf[:n]...)
		at += int64(n)
	}
}

// TestRingKeepsTheEnd compares a ring with a slice that keeps all bytes.
func TestRingKeepsTheEnd(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := newRing(1 << 30)
	var whole []byte
	for range 120 {
		p := make([]byte, random.IntN(20_000))
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		r.put(p)
		whole = append(whole, p...)
		kept, from := all(r)
		if r.end != int64(len(whole)) || from+int64(len(kept)) != r.end || !bytes.Equal(kept, whole[from:]) {
			t.Fatalf("kept %d bytes from %d of %d", len(kept), from, len(whole))
		}
		if len(kept) < min(len(whole), RingSize) {
			t.Fatalf("kept only %d bytes of %d", len(kept), len(whole))
		}
	}
	huge := bytes.Repeat([]byte("x"), 3*RingSize)
	r.put(huge)
	if kept, _ := all(r); len(kept) != RingSize {
		t.Errorf("after a piece larger than the ring: %d bytes are kept", len(kept))
	}
}

// TestRingsShareABudget checks that rings stay small and still work when the budget is used up.
func TestRingsShareABudget(t *testing.T) {
	r := newRing(20 << 10)
	r.put(make([]byte, 1<<20))
	if len(r.buf) > 24<<10 || r.room(r.end) != len(r.buf) || r.room(r.start) != 0 {
		t.Errorf("ring of %d bytes has room for %d and %d", len(r.buf), r.room(r.end), r.room(r.start))
	}
	r.free()
	if left := r.budget.left.Load(); left != 20<<10 {
		t.Errorf("after free: %d bytes of the budget are left", left)
	}
	if n, _ := r.get(make([]byte, 1), 0); n != 0 {
		t.Error("a freed ring keeps something")
	}
}
