// Package proc starts child processes that outlive their parent, and finds them again.
//
// It owns starting a process with given files and credentials, a bounded log of its output, waiting through a pidfd,
// killing, the identity of a process across a restart of this program, and its usage from /proc. It does not know
// what the children do.
//
// A child never depends on the life of this process. It has no parent-death signal: the kernel sends that when the
// thread that forked ends, not the process. An Identity contains the start time and the boot of the host, so a reused
// process ID is never mistaken for the process.
//
// A Process is safe for concurrent use. Each has one goroutine of its own, without a thread, that ends with the
// process or with Release.
package proc
