// Package lazy starts machines on snapshots whose content is still being downloaded from the object store.
//
// It owns the mount that presents the content as files, the use of a snapshot by each machine, the recording
// and prefetching of traces, and the download in the background (hydration). It does not know how content is
// stored (a chunkstore.Source reads it), what a machine is, nor who asked for it.
//
// # Life of a remote-backed snapshot
//
//	Import ---> remote-backed, small files local ---> hydrated in the background ---> local
//	               Attach, Attach ...                  (after what machines wait for)
//
// The large files, memory and disks, exist from the start with their size and inode, so that a capture of a
// machine refers to the same file before and after hydration. Until they are local, monitors map the memory
// through the mount or have their page faults handled, and each machine has a disk of its own on top of the
// snapshot's disk, also through the mount. When the files are local, everything is read from them, the
// machines' disks share their blocks, and the next restore does not need this package.
//
// # What ends a machine
//
// If content that a machine waits for does not arrive within the read timeout, all machines attached to the
// snapshot fail with the reason. A failed hydration is retried. When this process dies, the mount dies with
// it, and a machine that still uses it ends when it touches missing content; CompleteDisks can make its disks
// complete later.
//
// All methods may be called concurrently.
package lazy
