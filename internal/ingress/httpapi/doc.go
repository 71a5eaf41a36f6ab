// Package httpapi serves /v1, the REST API, wire-compatible with the published SDKs.
//
// It owns the table of routes, who may call each, how bodies are read and responses written, and the OpenAPI document
// of all that. A handler decodes, calls one method of a service, and encodes; the service owns the meaning. The package
// knows neither hosts nor machines, and of a sandbox's inside only the guestapi.Guest that the sandbox service returns.
//
// Invariants. Every route is in the table and nowhere else, and its access is checked before its handler runs. Every
// response that is not 2xx is an api.Error as JSON, including 404 and 405 of unknown paths. The exception is a response
// of a program inside a sandbox, through the port proxy. For resources of other workspaces the response is the same as
// for resources that do not exist. An unknown field in a body is refused by its name.
//
// A Server has no state of its own beyond counters. All requests may run at once. Streams end when the context of their
// request ends, so a program that stops cancels the base context of its http.Server.
package httpapi
