// Package machine owns machines while they live: it makes them from snapshots, forks them, puts them to
// rest, wakes them, and brings every one to its end.
//
// It owns the machines directory: one directory for each machine with its intent (machine.json), its
// disks, and whatever its monitor writes. It must not know users, sandboxes or templates' recipes; which
// monitor runs a machine is the driver's business, and drivers differ only by their capabilities.
//
// Invariants:
//
//   - One operation at a time works on a machine; others wait for it. No lock is held across machines.
//   - An intent is written before the first resource is taken, so whatever a killed process leaves is
//     found by Recover and either taken over or removed. A machine is in the list or leaves nothing.
//   - A machine that was restored runs nothing of its user before its guest confirmed the new identity.
//     One that does not confirm in time is destroyed.
//   - A parent goes on after a fork or snapshot, whatever failed.
//   - The memory that a machine left behind when it hibernated is marked used, durably, before the
//     machine runs again. It is never restored a second time over a newer disk.
//
// planStart, which has no side effects, decides how a machine starts: create, fork, wake, cold boot and warm
// start take their steps from one list (admit, provision, prepare, start, load, confirm, publish). A launch
// performs them; each step registers its cleanup as soon as it has acquired something. Config.OnStep sees
// every step, so that tests can fail or abandon an operation after each of them.
//
// All methods of a Manager may be called at once.
package machine
