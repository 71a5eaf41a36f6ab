// Package firecracker runs machines in unmodified Firecracker, controlled through its REST API.
//
// It owns the monitor processes (Firecracker), the requests to them and their order, and their
// files in Spec.Dir. It also owns the format of images: memory (raw), state (Firecracker's snapshot
// file, "vmstate"), shape.json (what this driver must know about a machine to restore it), and
// manifest.json. It must not know what runs in a guest, what a disk contains, or how the network is
// made.
//
// # The monitor's directory
//
// Spec.Dir contains a directory root, which belongs to the monitor. It is the monitor's working
// directory and, in a jail, everything that the monitor can see. A Firecracker snapshot embeds the
// paths of its drives and of the vsock's Unix socket, and /snapshot/load opens the drives before
// any of them can be changed. Therefore all files in root have fixed, relative names (disk0,
// memory, v.sock), the files of a machine are hard links, and a restore is a single request. The
// files monitor.json and base lie beside root, where the monitor cannot reach them.
//
// # How a machine is started
//
//   - Boot: the driver configures the machine, one request per resource, and then starts it
//     (InstanceStart).
//   - Prepare: the driver starts the process and places the files in root. It sends no request yet,
//     because Firecracker refuses /snapshot/load after any boot-specific request.
//   - Load: one request, /snapshot/load with resume_vm. Only a machine that differs from its
//     snapshot (a larger disk, a volume, more memory, rate limits) is loaded without resuming,
//     changed, and then resumed. Metadata (SetMetadata) is sent before the load: PUT /mmds does not
//     count as boot-specific, and so the guest can read its metadata from its first instruction on.
//
// # Capture
//
// A capture is a diff snapshot into a reflink of the memory file that the machine was started on
// (the base). If the target exists with the right size, Firecracker writes only the dirty pages in
// place, so the result is a complete memory file. It becomes the base of the next capture, because
// Firecracker resets its dirty bitmap. While a capture is in progress the record names no base, so
// that a capture with unknown outcome is followed by a full one. Captures of a machine that was
// booted are always full, because it runs without dirty page tracking.
//
// A capture closes the guest channel: Firecracker sends the guest a vsock transport reset, which
// drops all its connections.
//
// # Invariants
//
// A memory file that a running machine maps is never written or truncated. A directory has at most
// one monitor. The monitor is named in monitor.json or, if this process died before it wrote that
// file, identified by its environment. No machine has PCI devices. After a failed load the monitor
// is never used again.
package firecracker
