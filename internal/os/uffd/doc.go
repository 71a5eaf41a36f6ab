// Package uffd handles page faults of other processes through userfaultfd(2).
//
// It owns the binary interface of a userfaultfd, with the only unsafe code for it, and the decoding
// of events. It also owns Firecracker's handshake: one message on a Unix socket with the regions of
// the guest's memory as JSON and the userfaultfd as ancillary data. It must not know where the
// content of a page comes from, nor what a guest is.
//
// # Rules of the kernel
//
// While an event other than a page fault is unread, Copy, Zero and Continue return ErrAgain. Read
// all events first, then try again. A process that removes memory is blocked until its event is
// read. ErrExists reports that the page is already present. This is not a failure: wake the threads
// that wait for the page. ErrGone reports that the range or the process no longer exists. A call
// that stopped early returns the number of bytes done and no error.
//
// An FD may be used from many goroutines; only one of them may read events.
package uffd

import "errors"

// Errors of Copy, Zero and Continue, for use with errors.Is.
var (
	ErrAgain  = errors.New("pending events must be read first")
	ErrExists = errors.New("the page is already present")
	ErrGone   = errors.New("the memory or its process no longer exists")
)
