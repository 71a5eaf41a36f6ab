// Package qmp speaks the QEMU Machine Protocol over a unix socket.
//
// It owns the order of commands and answers, the passing of descriptors, and the bounds on what the
// other side may send. It knows no command's meaning. QEMU is not trusted: it runs a guest that may
// have taken it over.
//
// Commands are pipelined: Send never waits for QEMU, not even for its greeting. QEMU answers commands
// in the order they were sent (QMP specification, "in-band" execution), so they carry no ids; QEMU
// reads its monitor byte by byte, which makes short commands fast ones. The first command of a connection is the
// exception: what QEMU was still at for an earlier connection, whose owner may have been killed, it answers on the
// new one, before all that is asked there.
//
// A Client may be used from many goroutines.
package qmp
