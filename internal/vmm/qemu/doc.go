// Package qemu runs machines in QEMU: the microvm machine type, virtio-mmio devices, stock binaries.
//
// It owns monitor processes, their command line, their sockets and what they leave in Spec.Dir, and the
// format of images: memory (raw), state (device state without memory, as QEMU writes it),
// perhaps layer.json and a directory process, and manifest.json. It must not know what runs in a guest, what a disk holds, or how the network is made.
//
// # How a machine is started
//
// The monitor inherits descriptors for everything it uses: listening sockets for its monitor protocol
// and for the guest channel, the memory file, the disks, the tap, and one end of a socket pair that its
// device state will come through. It opens no path of ours, so it needs no access to any directory: in a
// jail it is given its program, libraries, firmware, and its memory and kernel under fixed paths. A later process of ours
// reaches it by connecting to the sockets again.
//
//   - Boot: memory is a new file in Spec.Dir, mapped shared, so that an image of it is a reflink.
//   - Prepare: memory is the image's file, opened read-only and mapped privately. The monitor waits for
//     device state on its socket pair. When this process dies before Load, the pair breaks and the
//     monitor ends by itself.
//   - Load: with a capture, its pages are written into the monitor's memory; then the state is sent.
//
// # Monitors made from images
//
// QEMU without KVM translates what a guest runs, for each monitor anew. The image of a rehearsed machine therefore
// also holds the monitor itself as a process (directory process, package ). Prepare then starts no
// QEMU but a vehicle, which inherits the same descriptors and some for QEMU's own; Load makes a monitor of it,
// whose guest is stopped and whose connections are made, and lets the guest go on. Captures of such a machine hold
// the process too, so children of a fork begin with what their parent's monitor knows. Where the process does not
// fit (another boot of the host, another QEMU) the same image is restored by its device state. To another host the
// process goes as a parcel (parcel.go), and lies there over content of the other host (contents.go).
//
// # Images over images
//
// An image is whole: its memory file shares blocks with the memory it grew from and holds everything.
// But a reflink shares no page cache, so a guest that starts on it waits for the disk. An image that
// differs little therefore also says over which memory, and where it differs (layer.json). While that
// memory is there, a machine maps it, and Load copies the difference in. An image that still streams lies over nothing:
// all of the difference would have to come before its guest runs.
//
// # Capture
//
// What differs from the image is exactly the private pages of the mapping (PAGEMAP_SCAN, or pagemap
// before Linux 6.7), so nothing has to be tracked while a guest runs. The guest channel is held still
// between the device state and the copy of the memory: QEMU moves bytes from its sockets into guest
// memory even while the guest's processors are stopped.
//
// Memory is never ballooned: releasing pages of a private mapping would punch holes into the image.
//
// # Invariants
//
// An image's files are never written after Save. A directory has at most one monitor, named in
// monitor.json or, if this process died before that was written, by its environment. The device list
// of a machine is a function of its Spec and of the manifest alone; machineFormat names the function.
//
// # Kernels
//
// A kernel in ELF form is taken to find virtio devices on its command line, and is run without ACPI.
// Any other (bzImage, as distributions ship) gets ACPI tables. The manifest records which.
package qemu
