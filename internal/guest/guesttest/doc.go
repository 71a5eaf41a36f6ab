// Package guesttest is what every guest must do: one suite for the real backend, for guests in memory and
// for guests in machines.
//
// Basic needs no more than files and a shell that knows a few words; Full needs a Linux user space.
package guesttest
