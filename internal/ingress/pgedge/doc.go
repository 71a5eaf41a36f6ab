// Package pgedge is the edge of managed databases: it accepts PostgreSQL connections from the network.
//
// A client names its database by the host name that it connects to (the server name of its TLS handshake) or by the
// option endpoint=ID. The edge ends TLS, authenticates the client, wakes the database if it sleeps, logs into it on
// the client's behalf and then copies bytes. It must not know what a database runs in: a Resolver finds endpoints, and
// an Endpoint has its roles, wakes it and dials its socket.
//
// # Authentication
//
// The edge is a SCRAM server with the verifiers that an Endpoint returns, with channel binding to the certificate that
// the client saw. From the client's proof it recovers the key with which it logs into the database; it
// never sees a password. Only a client that has proved its password wakes a database, takes a place among the
// sessions of the endpoint, or learns anything about it: names of endpoints and roles that do not exist lead to the
// same exchange as a wrong password, and so does an address that may not connect.
//
// A role that exists only in the database (Role.PassThrough) proves its password to the database itself, through the
// edge. That needs a running database and has no channel binding; a database that sleeps is not woken for it.
//
// # Cancellation
//
// A client gets a cancellation key of the edge's own, random for each session. A cancel request with that key reaches
// the session's backend and no other.
//
// # Bounds
//
// Connections that have not authenticated are bounded in number, shared fairly between addresses (IPv6: networks of
// 64 bits), and have one deadline. Failed logins are followed by a growing pause for their address. Sessions are
// bounded for each endpoint. A session holds two buffers, whatever the size of the messages that pass.
//
// # Ends of sessions
//
// The edge follows the framing of both directions without looking into messages, so that it knows whether a session is
// idle. Disconnect and the end of Serve end idle sessions at once with SQLSTATE 57P01, and others when their
// transaction has ended or time is up. A database that goes away is SQLSTATE 08006.
//
// All methods may be called concurrently.
package pgedge
