// Package vmmproc is the common part of drivers whose machines are monitor processes.
//
// It owns the lifecycle of such a process, from its start (or its adoption by a later host agent)
// to its exit and the reason for the exit. It also owns the record beside a machine by which the
// monitor is adopted, the sockets in machine directories, and the small files of images. It must
// not know which program a monitor is, which protocol the monitor speaks, or what its command line
// means.
//
// A driver has a Registry, which holds its monitors by directory, and embeds a Process in its
// machine type. The Process implements the methods PID, Done, Err, Usage and Kill of vmm.Machine.
// The driver supplies its own part as Hooks.
//
// # Invariants
//
// A directory has at most one monitor. It is the process named in the record or, if the host agent
// died before it wrote the record, the process that has Marker in its environment. When Done is
// closed, the monitor's files have been removed, the Registry has forgotten the process, and all
// connections of the driver to it are closed.
//
// # Concurrency
//
// All methods may be called concurrently. A driver may call Phase and SetPhase while it holds a
// lock of its own. No hook is called with a lock of this package held.
package vmmproc
