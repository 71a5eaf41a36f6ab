// Package httpapi is /v1, the REST face of the services, wire-compatible with the published SDKs.
//
// It owns the table of routes, who may call each, how bodies are read and answers written, and the
// OpenAPI document that says so. A handler decodes, calls one verb of a service, and encodes; what the
// verb means is the service's. It knows hosts and machines not at all, and a sandbox's inside only as the
// guestapi.Guest that the sandbox service hands out.
//
// Invariants. Every route stands in the table and nowhere else, and its access is checked before its
// handler runs. Every answer that is not 2xx is an api.Error as JSON, 404 and 405 of unknown paths
// included, except what a program inside a sandbox answers through the port proxy. What belongs to another
// workspace answers as what does not exist. An unknown field in a body is refused by its name.
//
// A Server has no state of its own beyond counters; all requests may run at once. Streams end when the
// context of their request ends, so a program that stops cancels the base context of its http.Server.
package httpapi
