package chunkstore

import "sync"

// bufferBytes is the capacity of every pooled buffer: one request of a prefetch.
const bufferBytes = prefetchFrames*(FrameSize+overhead) + slack

// bufferPool reuses the memory for the content of requests, which are many and of one size. Touching fresh
// pages from the kernel costs more than decompressing into them. The zero value is ready for use.
type bufferPool struct{ free sync.Pool }

// get returns an empty slice with room for size bytes. The caller returns it with put, or leaves it to the
// garbage collector.
func (l *bufferPool) get(size int) []byte {
	if size > bufferBytes || size < bufferBytes/4 { // do not keep a large buffer for a small content
		return make([]byte, 0, size)
	}
	if b, ok := l.free.Get().(*[bufferBytes]byte); ok {
		return b[:0]
	}
	return new([bufferBytes]byte)[:0]
}

// put returns a buffer that is not used any more.
func (l *bufferPool) put(b []byte) {
	if cap(b) == bufferBytes {
		l.free.Put((*[bufferBytes]byte)(b[:bufferBytes]))
	}
}
