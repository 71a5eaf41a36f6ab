package chunkstore

import (
	"context"
	"os"
)

// Sizes of the format, in bytes. Another size is another format version.
const (
	PageSize  = 4 << 10   // of what is compared, left out when zero, and mapped
	FrameSize = 128 << 10 // of what is compressed, sealed, fetched, verified and cached
	ChunkSize = 4 << 20   // of an object before compression, at most
)

// Range is a part of a file.
type Range struct {
	File           string
	Offset, Length int64 // in bytes
}

// Source gives the content of the files of one manifest, wherever it lies. All methods may be called at
// once. An error is final for that call and says what is wrong: a *DamagedError when the store or the
// cache gave bytes that are not what was pushed, else the store's. A call that is repeated asks anew.
type Source interface {
	// Size of a file in bytes; false when there is no such file.
	Size(file string) (int64, bool)
	// ReadAt fills p with the file's content from off on, all of it or an error. What is not in the cache
	// is fetched: as many frames at once as there are, neighbours in one request.
	ReadAt(ctx context.Context, file string, p []byte, off int64) error
	// RunAt tells what lies at off: for how many bytes from there on the file is of one kind, and whether
	// these are zeros that cost nothing to read. At the end of the file, and beyond, length is 0.
	RunAt(file string, off int64) (length int64, zero bool)
	// LocalCopy gives a file of this host that has, from off on, the same content at the same offsets, and for how many
	// bytes; 0: none is known. It is read only, and stays the source's.
	LocalCopy(file string, off int64) (here *os.File, length int64)
	// Prefetch brings ranges into the cache and returns when they are there, in the order given as far as
	// the store answers in order. Nobody has to call it.
	Prefetch(ctx context.Context, ranges []Range) error
}
