// Package firecracker runs machines in Firecracker: stock binaries, asked over their API.
//
// It owns monitor processes, what they are asked and in which order, what they leave in Spec.Dir, and the
// format of images: memory (raw), state (the monitor's own file of device state), shape.json (what this
// driver must know of the machine to restore it) and manifest.json. It must not know what runs in a guest,
// what a disk holds, or how the network is made.
//
// # Where a monitor lives
//
// Spec.Dir holds one directory, root, that belongs to the monitor: it is its working directory and, in a
// jail, all that it sees. In it everything has the same name in every machine (disk0, memory, v.sock): a
// snapshot contains the paths of its drives and sockets, and a release opens them before anything can be
// changed. So names are relative and fixed, files are hard links, and a restore is one request. Beside root
// lie monitor.json and base, which the monitor cannot reach.
//
// # How a machine is started
//
//   - Boot: the machine is described request by request, and started.
//   - Prepare: the process is started, and files are laid into root. Nothing is asked yet, because a
//     monitor that was asked for anything of a boot refuses to load.
//   - Load: one request, which resumes too. Only a machine that needs more than its snapshot says (a larger
//     disk, a volume, more memory, rates) is loaded stopped, changed, and then resumed. Who the guest is
//     (Identify) is said before: metadata is no part of a boot, and is there when the guest runs.
//
// # Capture
//
// The monitor writes what its guest changed into a file that shares all blocks with the memory that the
// machine was started on (base), so the file is whole afterwards. It becomes the base of the next capture,
// since the monitor forgets what it has written. While a capture is under way the record names no base: a
// capture of which nobody knows how it ended is followed by a full one. Captures of a machine that was booted are
// always full: what it writes is not followed.
//
// A capture ends the guest channel: the guest is told that its connections are gone.
//
// # Invariants
//
// A file that a living machine's memory is mapped from is never written or cut. A directory has at most one
// monitor, named in monitor.json or, if this process died before that was written, by its environment. No
// machine gets PCI devices. A monitor that failed to load is never asked again.
package firecracker
