// Package guestapi is the contract between a host agent and the guest agent in a machine: what can be
// asked (Guest), in which words, and how it is written on the wire. Both sides import it and neither
// owns it. It does no input or output of its own.
package guestapi
