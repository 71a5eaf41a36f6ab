// Package fcapi is a client for Firecracker's REST API over its Unix socket.
//
// It owns the requests and their fields, the releases that introduced them, and one connection. It
// must not know why or in which order requests are made, or what a machine is.
//
// Firecracker refuses requests with unknown fields (deny_unknown_fields). Therefore a request that
// needs a newer release is refused by name before it is sent, and no field is dropped silently.
//
// Responses are bounded and not trusted, because a guest that has escaped from its machine may send
// them. A Client may be used from many goroutines. Requests are made one after the other, which is
// also how Firecracker handles them.
package fcapi
