package chunkstore

import "sync"

// bufferBytes is what every loan has room for: one request of a prefetch.
const bufferBytes = prefetchFrames*(FrameSize+overhead) + slack

// bufferPool lends memory for the content of requests, which are many and of one size: what the kernel has never given to
// this process costs more to touch than to decompress into. The zero value is ready.
type bufferPool struct{ free sync.Pool }

// get gives an empty slice with room for size bytes. It is given back, or left to the garbage collector.
func (l *bufferPool) get(size int) []byte {
	if size > bufferBytes || size < bufferBytes/4 { // whoever keeps a little does not keep much
		return make([]byte, 0, size)
	}
	if b, ok := l.free.Get().(*[bufferBytes]byte); ok {
		return b[:0]
	}
	return new([bufferBytes]byte)[:0]
}

// put takes what was lent and nobody uses any more.
func (l *bufferPool) put(b []byte) {
	if cap(b) == bufferBytes {
		l.free.Put((*[bufferBytes]byte)(b[:bufferBytes]))
	}
}
