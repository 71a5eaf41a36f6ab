// Package access decides which callers may do what at the APIs, and how often.
//
// The table of operations declares the scope that each one needs, for all faces: /v1 and those of E2B's protocol. A
// Guard authenticates the key of a request, checks the scope, limits the rate of keys and addresses and the failures of
// addresses, and passes what has to be recorded to the audit log. Proxies find the address of a client behind trusted
// proxies.
//
// Every table of limits is bounded. All methods may be called concurrently.
package access
