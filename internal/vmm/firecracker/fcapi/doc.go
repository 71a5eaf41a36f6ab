// Package fcapi speaks Firecracker's API: requests and answers over its unix socket.
//
// It owns the words of the API, which release knows which of them, and one connection. It must not know
// why anything is asked, in which order, or what a machine is.
//
// Firecracker refuses a request that has a field it does not know. So a request that needs a newer release
// is refused here, by name, and nothing is left out silently.
//
// What the other end says is bounded and not trusted: a guest that broke out of its machine may speak there.
// A Client may be used from many goroutines; the requests are made one after the other, as Firecracker would.
package fcapi
