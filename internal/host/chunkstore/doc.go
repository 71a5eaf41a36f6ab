// Package chunkstore keeps files in an object store: the files of a snapshot, cut into chunks.
//
// It owns the format of what is stored: which objects there are, how they are compressed, encrypted,
// named and signed, and which of them nobody needs any more. It must not know what a file means to whom
// it belongs; the manifest carries the owner's description as bytes.
//
// # Format
//
// A file is pages of 4 KiB. Pages of zeros are nowhere. All others lie in chunks: objects of up to 1024
// pages (4 MiB), named by a keyed hash of their content. The manifest says for runs of a file's pages
// in which chunk they lie, and where. A file that was pushed without a parent has a chunk for each of its
// 4 MiB parts. Of a file that has a parent only the pages that differ are packed into new chunks, from all
// over the file; the rest is where the parent's manifest says. So a difference is uploaded once, and a
// page is read from one place however long the line of parents is.
//
// A chunk is stored in frames of 32 pages (128 KiB), each compressed with zstd where that helps, and
// sealed with AES-256-GCM under a key of this chunk. A frame is the unit of reading: it is fetched with a
// ranged Get, verified, and kept in the host's cache.
//
// # Keys
//
// All keys of a workspace derive from its name and the master key. Equal content of two workspaces has
// different names and different keys, so neither learns of the other, and the store learns no content. A
// manifest is encrypted, and signed; it is verified before any part of it is believed.
//
// # Concurrency
//
// Manifests are immutable. Push, Open, Collect and all methods of a Reader may run at once, on several
// hosts, over one store.
package chunkstore
