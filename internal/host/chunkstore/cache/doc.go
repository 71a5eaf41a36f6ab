// Package cache keeps parts of objects on the host's disk: frames of 128 KiB, of objects of up to 4 MiB.
//
// It owns one directory. Each object has a file, with its frames at their offsets and, after the space of the
// largest object, a checksum for each frame that is present. A frame is valid once its checksum is written
// and matches, so a crash at any point loses frames and never returns wrong ones; nothing is synced to the
// disk. Every process verifies each file's frames once before it uses them.
//
// The cache is never required: frames that cannot be stored, because the directory is full, damaged or
// removed, are served from a small memory and counted. The package does not know what objects are or where
// they come from.
//
// # Invariants
//
// The sum of all files is at most Config.Bytes plus the frames being fetched. The least recently used objects
// are removed first. Of several callers that want a frame at once, one fetches it.
//
// All methods of a Cache may be called concurrently. A directory belongs to one Cache.
package cache
