// Package fctest is a strict Firecracker without a virtual machine: a program of its own that a test starts
// in Firecracker's place.
//
// It owns what a driver can do wrong: the command line, the routes and the fields that each release knows,
// the order in which requests are allowed, the limits of requests, the files of snapshots and when they may
// be written, the paths that a snapshot opens again, the way to the guest's sockets before and after a
// restore, the handshake over a userfaultfd, and exit codes. Guest memory is a real mapping; the guest in it
// is one of package fake, whose state lies in that memory, so that a restore really reads it. It must not
// know the driver.
//
// A test binary becomes the program: its TestMain calls Main first, which returns when it was not started
// as one. Install puts the program into a directory of the test; there is one for every release. Beside the
// program lie faults.json, which a test writes with Fail to make a request go wrong, and requests.log, which
// tells every start and every request in order; in a jail, that lies in the directory of the monitor.
//
// InstallJailer puts a strict stand-in for the official jailer beside it: its command line, its refusals, what it
// does in which order, and what it expects to find. Control groups and daemons, which the driver leaves to
// others, it does not know.
package fctest
