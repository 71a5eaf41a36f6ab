// Package pager gives machines the content of a snapshot that is not all on this host yet: it answers page
// faults of monitors, keeps a machine's disk over one that is still coming, records what machines use
// first, brings that in ahead the next time, and makes the rest local in the background.
//
// It owns no file but those it is told to fill, and no format but that of traces. It must not know
// machines, snapshots' descriptions or the object store; where bytes come from is a chunkstore.Source's
// business, how a kernel asks for them package uffd's and package view's.
//
// # Order
//
// What somebody waits for comes first; then what a trace says will be needed, in the order of its use;
// then the rest. When all of a file is local, reads go there and the Source is not asked again.
//
// # Memory that was given back
//
// A range that a monitor removed reads as zeros from then on, and never as the snapshot's bytes. A removal
// is read and noted under a lock that every fill holds while it fills, so no fill that was decided
// before it lands after it.
//
// # Failure
//
// A read that a Source cannot answer within the limit fails. Serve then ends with the reason, and a
// Disk answers it to whoever reads: the machine is failed by its owner and nobody hangs. A Fill that fails
// may be begun again.
package pager
