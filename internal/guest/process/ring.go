package process

import "sync/atomic"

// RingSize is the maximum number of bytes kept of a stream.
const RingSize = 512 << 10

const ringMin = 4 << 10

// budget limits the bytes of all rings together. A ring that cannot grow keeps less.
type budget struct{ left atomic.Int64 }

func (b *budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

func (b *budget) give(n int64) { b.left.Add(n) }

// ring keeps the end of a stream of bytes. Offsets count from the beginning of the stream.
type ring struct {
	budget     *budget
	buf        []byte // its length is a power of two, or 0
	start, end int64
}

// room returns how many bytes fit without overwriting any from offset keep on.
func (r *ring) room(keep int64) int {
	keep = max(keep, r.start)
	free := RingSize - int(r.end-keep)
	if r.full() {
		free = len(r.buf) - int(r.end-keep)
	}
	return free
}

// full reports whether the ring has its final size.
func (r *ring) full() bool {
	return len(r.buf) == RingSize || len(r.buf) > 0 && r.budget.left.Load() < int64(len(r.buf))
}

// put appends p. It overwrites the oldest bytes when the ring is full.
func (r *ring) put(p []byte) {
	for len(r.buf) < RingSize && int(r.end-r.start)+len(p) > len(r.buf) && r.grow() {
		continue
	}
	if skip := len(p) - len(r.buf); skip > 0 {
		r.end += int64(skip)
		p = p[skip:]
	}
	for len(p) > 0 {
		n := copy(r.buf[int(r.end)&(len(r.buf)-1):], p)
		r.end += int64(n)
		p = p[n:]
	}
	r.start = max(r.start, r.end-int64(len(r.buf)))
}

func (r *ring) grow() bool {
	size := max(ringMin, 2*len(r.buf))
	if more := int64(size - len(r.buf)); len(r.buf) == 0 {
		r.budget.give(-more) // the smallest ring is always allowed
	} else if !r.budget.take(more) {
		return false
	}
	old := r.buf
	r.buf = make([]byte, size)
	for at := r.start; at < r.end; {
		i := int(at) & (len(old) - 1)
		n := copy(r.buf[int(at)&(size-1):], old[i:min(len(old), i+int(r.end-at))])
		at += int64(n)
	}
	return true
}

// get copies bytes starting at offset at, and returns the offset of the first: a later one if the ring no longer has
// those bytes.
func (r *ring) get(p []byte, at int64) (n int, from int64) {
	at = max(at, r.start)
	if at >= r.end {
		return 0, at
	}
	i := int(at) & (len(r.buf) - 1)
	return copy(p, r.buf[i:min(len(r.buf), i+int(r.end-at))]), at
}

// free returns all memory to the budget.
func (r *ring) free() {
	r.budget.give(int64(len(r.buf)))
	r.buf, r.start = nil, r.end
}
