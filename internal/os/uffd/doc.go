// Package uffd speaks to the kernel about page faults of other processes: userfaultfd(2), and the way
// Firecracker hands one over.
//
// It owns the binary interface of a userfaultfd (the only unsafe code for it), the decoding of its events,
// and the handshake: one message on a unix socket, with the regions of a guest's memory as JSON and
// the descriptor beside it. It must not know where the content of a page comes from, nor what a guest is.
//
// # Rules of the kernel
//
// While an event other than a fault waits to be read, filling answers ErrAgain: read all events there are,
// then fill. The process that removed memory stands still until its event was read. A page that is there
// already answers ErrExists, which is no failure: wake who waits for it. ErrGone says that the range or
// the process is not there any more. A fill that stopped early answers how far it came, and no error.
//
// An FD may be used from many goroutines at once; events are read by one of them.
package uffd

import "errors"

// What filling answers, compared with errors.Is.
var (
	ErrAgain  = errors.New("events wait to be read first")
	ErrExists = errors.New("the page is there already")
	ErrGone   = errors.New("the memory or its process is gone")
)
