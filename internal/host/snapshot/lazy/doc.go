// Package lazy lets machines start on snapshots that are still coming from the object store.
//
// It owns the view that shows their content as files, what each machine has of it, the recording and replay
// of traces, and the making whole in the background. It must not know how content is stored (a chunkstore.Source
// gives it), what a machine is, nor who asked for it.
//
// # Life of a partial snapshot
//
//	Begin ---> partial in the snapshot store, small files here ---> filled in the background ---> whole
//	              Attach, Attach ...                                 (after what machines wait for)
//
// The large files, memory and disk, exist from the start with their size and inode, so that what a capture
// of a machine lies over is the same file before and after. Until they are whole, monitors read the memory
// through a mapped view or have faults answered, and each machine has a disk of its own over the
// snapshot's, also through the view. When the files are whole, everything reads from them, the machines'
// disks share their blocks, and the next restore needs nothing of this package.
//
// # What ends a machine
//
// Content that somebody waits for and that does not come within the limit fails every machine attached to the
// snapshot, with the reason. A background fill that fails is tried again. When this process dies, the view
// dies with it and machines that still use it end at the next touch of what they do not have; their disks
// can be made whole later by Rescue.
//
// All methods may be called at once.
package lazy
