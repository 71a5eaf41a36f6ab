// Package guestexec runs programs in a guest and follows them until they exit.
//
// It is the client of guestapi.Process that every other package uses: Run keeps bounded output, Stream hands
// output on, Follow and Attach read a process that someone else started. It owns the rules that all of them
// share: the next event is read only after the last one was taken, a program whose caller gives up is killed
// with everything it started, and a guest that breaks the protocol is an error. It must not know a client's
// protocol, a sandbox or a machine.
//
// A guest is not trusted. Output is bounded or passed on piece by piece, offsets must not go backwards, and a
// guest that never reports an exit can be bounded with Command.Overtime or the context.
//
// All functions may run at the same time on one guest. A Sink, a Buffer and a Lines belong to one goroutine.
package guestexec
