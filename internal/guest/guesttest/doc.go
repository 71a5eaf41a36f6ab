// Package guesttest is a conformance suite for guests: the real backend, guests in memory and guests in machines.
//
// Basic needs no more than files and a shell with a few commands; Full needs a Linux user space.
package guesttest
