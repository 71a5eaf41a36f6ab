// Package api is the contract between a user and the control plane: the resources and requests of /v1.
//
// It has the requests and their validation, the events, the states of a sandbox and the error codes. It owns the wire
// shapes and nothing else: no store, no host, no HTTP. Every request type validates itself; an error names the field
// and the remedy. JSON names are snake_case, times RFC 3339 in UTC, durations seconds or milliseconds as the name says.
// The shapes are those that the published SDKs read; fields may be added, never renamed or removed.
//
// Values are plain data and safe to copy. A value that is not written to may be used by many goroutines.
package api
