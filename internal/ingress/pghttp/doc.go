// Package pghttp is the edge of managed databases for clients that speak HTTP.
//
// It has three faces over one pool of connections. Neon's protocol: POST /sql with a connection string in a header, one
// query or a batch in a transaction, as the npm package @neondatabase/serverless sends it; and the WebSocket /v2, which
// carries the protocol of PostgreSQL and is served by pgedge. The query broker: /v1/query, /v1/exec, /v1/transaction
// and databases of one endpoint, for the holder of its broker token.
//
// The package must not know how endpoints come about or what serves them: it uses pgedge.Resolver and pgedge.Endpoint.
//
// A password is checked against the role's verifier before its database is woken or reached; the pool keeps keys that
// were derived from it, never the password. Endpoints and roles that do not exist, and addresses that may not connect,
// look like a wrong password to a client without the right one. Roles without a verifier (pgedge.Role.PassThrough)
// cannot use HTTP.
//
// Requests, results, connections, rows and time are bounded; what a request holds is paid from a budget. A query ends
// with its request. A connection is reset (DISCARD ALL) before another request uses it.
//
// All methods may be called concurrently.
package pghttp
