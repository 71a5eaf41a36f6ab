// Package databases drives the edges of managed databases with real servers and with clients that others wrote.
//
// Its tests are those of phase e2e. They need no guests: the database is a server of this machine.
package databases
