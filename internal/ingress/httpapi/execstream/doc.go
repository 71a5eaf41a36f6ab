// Package execstream presents a process of a guest to a client: as one response, as server-sent events, or over a
// WebSocket, with a terminal or with many commands side by side.
//
// It owns the frames of these protocols and the rule for a client that goes away: the command that it waited for is
// killed with everything it started, and a terminal is hung up unless it is shared. It knows no sandbox, no key and
// no route; its callers pass a guest. Text that it sends consists of whole UTF-8 characters, however the guest
// split the bytes.
//
// Every function runs one exchange and returns when everything it started has ended. They may run side by side on
// one guest.
package execstream
