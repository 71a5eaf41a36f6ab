// Package qemu runs machines in unmodified QEMU, as the microvm machine type with virtio-mmio
// devices.
//
// It owns the monitor processes (QEMU), their command line, their sockets and their files in
// Spec.Dir. It also owns the format of images: memory (raw), state (QEMU's device state without
// memory), manifest.json, and optionally layer.json and a directory process. It must not know what
// runs in a guest, what a disk contains, or how the network is made.
//
// # How a machine is started
//
// The monitor inherits descriptors for everything it uses: listening sockets for QMP and for the
// guest channel, the memory file, the disks, the tap, and one end of a socket pair through which it
// receives its device state. It opens none of our paths and therefore needs access to no directory.
// In a jail it gets its program, libraries and firmware, and finds its memory file and kernel at
// fixed paths. A later host agent reconnects to the sockets.
//
//   - Boot: the memory is a new file in Spec.Dir, mapped shared (share=on), so that an image of it
//     is a reflink.
//   - Prepare: the memory is the image's memory file, opened read-only and mapped privately
//     (share=off). The monitor waits for device state on its socket pair (-incoming). If this
//     process dies before Load, the socket pair breaks and the monitor exits.
//   - Load: if there is a capture, its pages are written into the monitor's memory. Then the device
//     state is sent.
//
// # Restoring monitors from checkpoints
//
// Without KVM, QEMU translates guest code (TCG), and every new monitor starts with an empty
// translation cache. The image of a machine that was warmed up therefore also contains a checkpoint
// of the monitor process (directory process, package checkpointstore). Prepare then starts a
// restore stub instead of QEMU. The stub inherits the same descriptors, and some more for files
// that QEMU opens itself. Load restores the checkpoint into the stub. The result is a monitor with
// a stopped guest and open connections, which then resumes the guest. Captures of such a machine
// include a checkpoint as well, so the children of a fork start with the translations of their
// parent. Most of what such a checkpoint adds to the one before is mapped from its file, as the rest of the monitor's
// memory is, and not copied. If the checkpoint cannot be used here, because the host was rebooted or QEMU was
// upgraded, the same image is restored from its device state. A checkpoint moves to another host as
// a bundle (checkpointstore/export.go), which refers to a base pages file on that host
// (checkpointstore/basecontent.go).
//
// # Memory deltas
//
// An image is always complete: its memory file contains everything and shares unchanged blocks with
// the memory file it is derived from. But a reflink does not share page cache, so a guest on a new
// memory file would wait for the disk. An image that differs little therefore also records its base
// memory file and where it differs (layer.json). As long as the base exists, a machine maps the
// base, and Load copies the difference into it. This is not done for memory that is still being
// downloaded, because all of the difference would have to arrive before the guest runs.
//
// # Capture
//
// The pages that differ from the image are exactly the private pages of the mapping (PAGEMAP_SCAN,
// or /proc/PID/pagemap before Linux 6.7), so no dirty tracking is necessary while a guest runs. No
// data may pass through the guest channel between saving the device state and copying the memory,
// because QEMU moves bytes from its sockets into guest memory even while the vCPUs are stopped.
//
// There is no balloon: releasing pages of a private mapping would punch holes into the image.
//
// # Invariants
//
// A monitor restored from a checkpoint keeps the description of that checkpoint (base.json, a link), so that it can be
// captured without running anything for that: neither the death of this process during a capture nor the removal of the
// image costs the machine.
//
// The files of an image are never written after Save. A directory has at most one monitor. The
// monitor is named in monitor.json or, if this process died before it wrote that file, identified
// by its environment. The device list of a machine depends only on its Spec and the manifest;
// machineFormat is the version of that mapping.
//
// # Kernels
//
// An ELF kernel is expected to find its virtio devices on the kernel command line and runs without
// ACPI. Other kernels (bzImage, as distributions ship it) get ACPI tables. The manifest records
// which.
package qemu
