// Package proc starts child processes that outlive their parent, and finds them again.
//
// It owns: starting with given files and credentials, a bounded log of what the child prints, waiting
// through a pidfd, killing, the identity of a process that holds over a restart of this program, and
// what /proc says of it. It must not know what the children do.
//
// A child is never tied to the life of this process (no parent-death signal: the kernel sends that when
// the thread that forked ends, not the process). An Identity carries the start time and the boot of
// the host, so a reused process id is never taken for ours.
//
// A Process may be used from many goroutines. Each has one goroutine of its own, without a thread, that
// ends with the process or with Release.
package proc
