// Package sshgate is the SSH gateway: it serves sandboxes to OpenSSH and editors without a server inside them.
//
// A client logs in as the id of a sandbox, or as ID+USER to run as another user of it, with a public key that stands
// for an API key (package sshkey). Sessions run programs through the guest channel; the subsystem sftp works on files;
// and a client may forward connections to ports of the sandbox. It may neither forward connections elsewhere nor
// listen.
//
// # Authentication
//
// Until a client has proved that it has the private key nothing is asked of a sandbox: in particular none is woken.
// Every channel checks again what the API key allows at that moment: exec for programs, files for sftp, ports for
// connections. Connections whose key was revoked are closed within Limits.Recheck.
//
// # Bounds
//
// Connections that have not authenticated are bounded in number and time, in all and for each address. Connections are
// bounded for each sandbox, channels for each connection, open files for each sftp session; what a channel can buffer
// is paid for from a budget. Programs, files and connections inside count as streams of the sandbox like those of the
// API.
//
// All methods may be called concurrently.
package sshgate
