// Package guestapi is the contract between a host agent and the guest agent in a machine.
//
// It declares the requests (Guest), their types, and their encoding on the wire. Both sides import it and neither
// owns it. It does no input or output.
package guestapi
