// Package qmp speaks the QEMU Machine Protocol over a unix socket.
//
// It owns the order of commands and answers, the passing of descriptors, and the bounds on what the
// other side may send. It knows no command's meaning. QEMU is not trusted: it runs a guest that may
// have taken it over.
//
// Commands are pipelined: Send never waits for QEMU, not even for its greeting. QEMU answers commands
// in the order they were sent (QMP specification, "in-band" execution), so they carry no ids; QEMU
// reads its monitor byte by byte, which makes short commands fast ones.
//
// A Client may be used from many goroutines.
package qmp
