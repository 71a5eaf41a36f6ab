// Package qmp implements the QEMU Machine Protocol over a Unix socket.
//
// It owns the order of commands and responses, the passing of descriptors, and limits on what QEMU
// may send. It knows the meaning of no command. QEMU is not trusted, because its guest may have
// taken it over.
//
// Commands are pipelined: Send never waits for QEMU, not even for its greeting. QEMU responds to
// commands in the order in which they were sent (QMP specification, "in-band" execution), so they
// need no IDs. QEMU reads its monitor socket byte by byte, so short commands are faster. The first
// command of a connection has an ID: if an earlier connection broke, for example because its
// process was killed, QEMU sends outstanding responses on the new connection first.
//
// A Client may be used from many goroutines.
package qmp
