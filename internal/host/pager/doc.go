// Package pager gives machines the content of a snapshot that is still being downloaded.
//
// It handles page faults of monitors, keeps a machine's disk on top of the snapshot's, records which content
// machines use first, prefetches that content the next time, and downloads the rest in the background
// (hydration).
//
// It owns only the files that it is given for hydration, and only the format of traces. It does not know
// machines, descriptions of snapshots or the object store: a chunkstore.Source reads the content, and
// packages uffd and fusefs handle the kernel's requests.
//
// # Order
//
// Content that a machine waits for comes first; then the content of a trace, in the order of its use; then
// the rest. When all of a file is local, it is read there and the Source is not used any more.
//
// # Removed memory
//
// A range that a monitor removed (MADV_DONTNEED, balloon) reads as zeros from then on, and never as the
// snapshot's bytes. Removals are read and recorded under a lock that every installation of pages holds, so an
// installation that was decided before a removal cannot take effect after it.
//
// # Failure
//
// A read fails if the Source does not deliver within the timeout. Serve then returns the reason, and a Disk
// returns it to the reader: the owner fails the machine, and nothing hangs. A failed Hydrate may be called
// again.
package pager
