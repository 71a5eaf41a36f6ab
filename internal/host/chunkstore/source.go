package chunkstore

import (
	"context"
	"os"
)

// Sizes of the format, in bytes. Other sizes need another version of the format.
const (
	PageSize  = 4 << 10   // unit that is compared, left out when zero, and mapped
	FrameSize = 128 << 10 // unit that is compressed, sealed, fetched, verified and cached
	ChunkSize = 4 << 20   // largest object before compression
)

// Range is a part of a file.
type Range struct {
	File           string
	Offset, Length int64 // in bytes
}

// Source reads the files of one manifest. All methods may be called concurrently. A call does not retry after
// it has returned an error: a *DamagedError if the store or the cache returned bytes that are not what was
// pushed, else the store's error. Calling again makes new requests.
type Source interface {
	// Size returns the size of a file in bytes, or false if the file does not exist.
	Size(file string) (int64, bool)
	// ReadAt fills p with the file's content from off on, or returns an error. It fetches content that is not
	// in the cache: all frames concurrently, adjacent ones in one request.
	ReadAt(ctx context.Context, file string, p []byte, off int64) error
	// RunAt returns the length of the run at off that is all zeros or all content. Zeros cost nothing to
	// read. length is 0 at the end of the file and beyond.
	RunAt(file string, off int64) (length int64, zero bool)
	// LocalCopy returns a file of this host that has the same content as file from off on, at the same
	// offsets, and the number of such bytes, or 0. The file is read-only and stays the source's.
	LocalCopy(file string, off int64) (local *os.File, length int64)
	// Prefetch reads ranges into the cache, in order as far as the store responds in order, and returns when
	// they are there. It is optional.
	Prefetch(ctx context.Context, ranges []Range) error
}
