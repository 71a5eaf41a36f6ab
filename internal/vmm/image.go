package vmm

import (
	"context"
	"net"
	"time"
)

// Image is the memory and device state of a machine at rest: a directory whose files only the driver
// that wrote it understands. It is immutable; many machines share its memory at once. The disk that
// belongs to it is the caller's.
type Image struct {
	Dir      string
	Manifest Manifest
	// Memory serves the content of the memory while the file in Dir, which has its size and will have its
	// content, does not hold all of it; nil: it does. Only what Prepare and Load need is asked of it: a
	// machine is captured when the file is whole.
	Memory Memory
}

// Memory is an image's memory that is not all on this host's disk yet. Whoever made it keeps it until
// the machine is dead, and ends the machine when it cannot be served any more. A driver uses one of the ways.
type Memory interface {
	// File is the path of a file that reads as the memory, for monitors that map one. Reading what is not
	// there waits for it, and fails with EIO (a mapping: SIGBUS) when it does not come. It had better be read page by
	// page, as a guest touches it: what lies around comes by itself.
	File() string
	// Serve answers the page faults of one monitor, which sends its userfaultfd over conn as Firecracker
	// does. It takes conn over, and returns nil when the monitor has ended or ctx has; an error says why
	// faults are not answered any more: the monitor must be ended then.
	Serve(ctx context.Context, conn *net.UnixConn) error
}

// ManifestVersion is the format written by this program; others are refused.
const ManifestVersion = 1

// Manifest is stored beside an image as manifest.json, and says where it can be restored.
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
	DiskBytes   []int64     `json:"disk_bytes"` // sizes the guest knows; a larger disk is told to it after Load
	// DiskRates are the bounds that the monitor held, by disk; nil: none. Machines on this image have their own.
	DiskRates []Rate `json:"disk_rates,omitempty"`
	NIC       bool   `json:"nic"`
	// MaxMemoryMiB and MaxDisks are how far a machine on this image may go beyond MemoryMiB and Disks; 0: not
	// at all.
	MaxMemoryMiB int       `json:"max_memory_mib,omitempty"`
	MaxDisks     int       `json:"max_disks,omitempty"`
	Machine      string    `json:"machine"` // virtual hardware apart from the above, in the driver's words
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
