// Package machine holds tests of the host agent with real guests.
// They use QEMU, network slots, cgroups and a template that is baked for them, and need root and a prepared data
// directory.
package machine
