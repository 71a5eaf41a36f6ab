// Package cache keeps parts of objects on the host's disk: frames of 128 KiB, of objects of up to 4 MiB.
//
// It owns one directory: a file for each object, with its frames where they belong and, behind the room
// for the largest object, a checksum for each frame that is there. A frame counts from the moment its
// checksum is written and fits, so a crash at any point costs frames and never gives wrong ones; nothing
// waits for the disk. Every file's frames are checked once by every process before they are used.
//
// The cache is never needed: what cannot be kept, because the directory is full, damaged or gone, is
// given from a small memory, and counted. It must not know what objects are or where they come from.
//
// # Invariants
//
// The sum of all files is at most Config.Bytes plus what is being fetched. The objects used longest ago
// go first. Of several who want a frame at once one fetches it.
//
// All methods of a Cache may be called at once. A directory belongs to one Cache.
package cache
