package vmm

import (
	"context"
	"net"
	"time"
)

// Image is the memory and device state of a machine at rest.
// It is a directory whose files only the driver that wrote them understands. It is immutable; many machines share its
// memory at once. The disks that belong to it are the caller's.
type Image struct {
	Dir      string
	Manifest Manifest
	// Memory serves the content of the memory while the file in Dir, which has the final size, is not yet complete;
	// nil: it is complete. Only Prepare and Load use it: a machine is captured when the file is complete.
	Memory Memory
}

// Memory is an image's memory that is not all on this host's disk yet.
// Its maker keeps it until the machine has ended, and ends the machine if the memory cannot be served any more. A
// driver uses one of the two methods.
type Memory interface {
	// File returns the path of a file that reads as the memory, for monitors that map one. A read of a part that is
	// not yet downloaded waits for it, and fails with EIO (a mapping: SIGBUS) if the download fails. It is best read
	// page by page, as a guest touches it: the pages around are read ahead.
	File() string
	// Serve handles the page faults of one monitor, which sends its userfaultfd over conn as Firecracker does. It
	// owns conn, and returns nil when the monitor or ctx has ended; an error says why it stopped handling faults: the
	// monitor must be ended then.
	Serve(ctx context.Context, conn *net.UnixConn) error
}

// ManifestVersion is the format written by this program; others are refused.
const ManifestVersion = 1

// Manifest is stored beside an image as manifest.json and says where the image can be restored.
type Manifest struct {
	Version     int         `json:"version"`
	Driver      string      `json:"driver"`
	VMM         string      `json:"vmm"` // version of the monitor program
	Accelerator Accelerator `json:"accelerator"`
	CPU         string      `json:"cpu"`     // fingerprint of what the guest sees of the processor
	TSCkHz      int64       `json:"tsc_khz"` // rate of the guest's time stamp counter; 0 where it is virtual
	VCPUs       int         `json:"vcpus"`
	MemoryMiB   int         `json:"memory_mib"`
	Disks       int         `json:"disks"`
	DiskBytes   []int64     `json:"disk_bytes"` // sizes that the guest knows; Load announces a larger one
	// DiskRates are the rates that the monitor enforced, by disk; nil: none. Machines on this image have their own.
	DiskRates []Rate `json:"disk_rates,omitempty"`
	NIC       bool   `json:"nic"`
	// MaxMemoryMiB and MaxDisks are the most that a machine on this image can have; 0: MemoryMiB and Disks.
	MaxMemoryMiB int       `json:"max_memory_mib,omitempty"`
	MaxDisks     int       `json:"max_disks,omitempty"`
	Machine      string    `json:"machine"` // the driver's name of the virtual hardware (its ABI), apart from the above
	Created      time.Time `json:"created"`
	// Files are the image's files: name, size in bytes, and SHA-256 of those small enough to be checked
	// on every restore; of the memory file size alone is checked then, and the sum by Verify.
	Files []File `json:"files"`
}

// File is one file of an image.
type File struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256,omitempty"`
}
