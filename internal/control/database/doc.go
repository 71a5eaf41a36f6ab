// Package database is the service for managed PostgreSQL databases.
//
// A database is a row, and a server: a sandbox of package sandbox that belongs to the database (auth.Principal.Owner)
// with a volume of package volume in place of its template's data disk. A create restores the template's running
// cluster; a suspend hibernates the machine, and a wake restores it. Users have neither the sandbox nor the volume:
// they come in through an Endpoint, which the edges of packages pgedge and pghttp serve.
//
// # States
//
//	creating ─> ready ─> deleting ─> (no row)
//	     └────> failed ──────^
//
// Whether a ready database runs or sleeps is the state of its sandbox. Rows in other states have work to be done, which
// Run does and continues whatever process began it: a row is written before anything exists that it stands for, and
// what belongs to a database is found by its owner, so that a server that is half made is removed and made again, and a
// database that is deleted leaves nothing. A ready row with an Instance has credentials that its server may not have.
//
// # Sessions
//
// Endpoint.Acquire counts who uses a database, and wakes it. A database without users for its idle time is suspended:
// the hooks of BeforeSuspend run, the remaining sessions of the server are ended, and its machine is hibernated. While
// that happens Acquire waits, and then wakes it again.
package database
