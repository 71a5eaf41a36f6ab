// Package functionedge serves the host names of functions, and their requests that come over the API.
//
// A host name is fn-<id>.<suffix>, or fn-<id>--<alias>.<suffix> for an alias. The edge finds the function, checks what
// its settings ask of callers (an API key, a signature with the function's secret, or nothing), and bounds rates and
// bodies. It removes from requests the credentials of the platform and what clients may not say, and from responses
// what would take effect on other hosts. The service for functions, behind the interface Functions, chooses a machine
// and forwards.
//
// Invariants. A handler gets no API key and no header that begins with Pandastack- from a client. A function that does
// not exist and one that the caller may not know look the same.
//
// All requests may run at once.
package functionedge
