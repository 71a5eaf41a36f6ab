// Package machine owns machines while they run: it makes them from snapshots, forks them, hibernates and wakes them,
// and ends every one of them.
//
// It owns the machines directory: one directory for each machine with its record (machine.json), its disks, and the
// files of its monitor. It must not know users, sandboxes or templates' recipes. Which monitor runs a machine is the
// driver's business, and drivers differ only by their capabilities.
//
// Invariants:
//
//   - One operation at a time works on a machine; others wait for it. No lock is held across machines.
//   - A record is written before the first resource is acquired, so Recover finds what a killed process leaves and
//     takes it over or removes it. A machine is in the list or leaves nothing.
//   - A restored machine runs nothing of its user before its guest has confirmed the new identity. One that does not
//     confirm in time is destroyed.
//   - A parent continues after a fork or snapshot, whatever failed.
//   - A hibernation image has memory and disks of one moment. A wake starts from clones of its disks, and marks the
//     image used, durably, before the call returns. Until then a wake that fails or is killed
//     leaves the machine hibernated; afterwards the image is never restored again over a newer disk.
//
// planStart, which has no side effects, decides how a machine starts. Create, fork, wake, cold boot and warm start
// take their steps from one list (admit, provision, prepare, start, load, confirm, publish). A launch performs them;
// each step registers its cleanup as soon as it has acquired something. Config.OnStep sees every step, so that tests
// can fail or abandon an operation after each of them.
//
// All methods of a Manager may be called concurrently.
package machine
