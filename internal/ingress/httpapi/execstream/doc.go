// Package execstream is how a process in a guest is shown to a client: as one answer, as server-sent events,
// or over a WebSocket, alone with a terminal or many commands side by side.
//
// It owns the frames of these protocols and the rule for a client that goes away: the command it waited
// for is killed with all it started, a terminal is hung up unless it is shared. It knows no sandbox, no key and no route; it
// is handed a guest. Text that it sends is whole UTF-8 characters, whatever way the bytes were cut.
//
// Every function runs one exchange and returns when all it started has ended. They may run side by side
// on one guest.
package execstream
