// Package chunkstore keeps files in an object store: the files of a snapshot, cut into chunks.
//
// It owns the format of the store: the objects, their compression, encryption, names and signatures, and the
// garbage collection. It does not know what a file means to its owner; the manifest carries the owner's
// description as bytes.
//
// # Format
//
// A file consists of pages of 4 KiB. Pages of zeros are not stored. All others are in chunks: objects of up
// to 1024 pages (4 MiB), named by a keyed hash of their content. The manifest maps runs of a file's pages to
// a chunk and a position in it. A file that was pushed without a parent has a chunk for each of its 4 MiB
// parts. Of a file that has a parent, only the pages that differ are packed into new chunks, from all over
// the file; the others stay where the parent's manifest has them. So a difference is uploaded once, and a
// page is read from one place however long the ancestry is.
//
// A chunk is stored in frames of 32 pages (128 KiB), each compressed with zstd where that helps, and sealed
// with AES-256-GCM under a key of this chunk. A frame is the unit of reading: it is fetched with a ranged
// Get, verified, and kept in the host's cache.
//
// # Keys
//
// All keys of a tenant, which is a workspace, derive from its name and the master key. Equal content of two
// tenants has different names and different keys, so neither learns of the other, and the store learns no
// content. A manifest is encrypted and signed, and verified before any part of it is used.
//
// # Concurrency
//
// Manifests are immutable. Push, Open, GC and all methods of a Reader may run concurrently, on several hosts,
// over one store.
package chunkstore
