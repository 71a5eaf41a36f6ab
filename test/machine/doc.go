// Package machine holds tests of the host agent with real guests: QEMU, network slots, control groups
// and a template that is baked for them. They need root and a prepared data directory.
package machine
