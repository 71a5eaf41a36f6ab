package chunkstore

import "sync"

// loanBytes is what every loan has room for: one request of a prefetch.
const loanBytes = prefetchFrames*(FrameSize+overhead) + slack

// loans lends memory for the content of requests, which are many and of one size: what the kernel has never given to
// this process costs more to touch than to decompress into. The zero value is ready.
type loans struct{ free sync.Pool }

// lend gives an empty slice with room for size bytes. It is given back, or left to the garbage collector.
func (l *loans) lend(size int) []byte {
	if size > loanBytes || size < loanBytes/4 { // whoever keeps a little does not keep much
		return make([]byte, 0, size)
	}
	if b, ok := l.free.Get().(*[loanBytes]byte); ok {
		return b[:0]
	}
	return new([loanBytes]byte)[:0]
}

// back takes what was lent and nobody uses any more.
func (l *loans) back(b []byte) {
	if cap(b) == loanBytes {
		l.free.Put((*[loanBytes]byte)(b[:loanBytes]))
	}
}
