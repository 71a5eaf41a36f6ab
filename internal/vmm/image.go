package vmm

import "time"

// Image is the memory and device state of a machine at rest: a directory whose files only the driver
// that wrote it understands. It is immutable; many machines share its memory at once. The disk that
// belongs to it is the caller's.
type Image struct {
	Dir      string
	Manifest Manifest
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
	NIC         bool        `json:"nic"`
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
