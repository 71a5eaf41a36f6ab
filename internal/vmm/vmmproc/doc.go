// Package vmmproc is what drivers share whose machines are processes: monitors.
//
// It owns the life of such a process from its start, or its adoption by a later process of ours, to its
// end and the reason of that; what is written beside a machine so that it can be adopted; sockets in the
// directories of machines; and the small files of images. It must not know which program a monitor is, how
// it is asked for anything, or what its command line means.
//
// A driver keeps a Set, which is all of its monitors by directory, and embeds a Life in its machine. The
// Life answers PID, Done, Err, Usage and Kill of vmm.Machine; the driver's part of a machine comes in as
// Hooks.
//
// # Invariants
//
// A directory has at most one monitor: the one that its record names or, if this process died before the
// record was written, whoever carries Marker in its environment. When Done is closed the files that
// belonged to the monitor are gone, the Set has forgotten it, and nothing of the driver's is connected to it.
//
// # Concurrency
//
// All methods may be called from many goroutines. A driver that holds a lock of its own may call At and
// Move; no Hook is called with a lock of this package held.
package vmmproc
