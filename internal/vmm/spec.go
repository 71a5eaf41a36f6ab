package vmm

import (
	"net"
	"os"
)

// Spec is the specification of a machine.
// The caller owns everything that it names and keeps it until the machine has ended.
type Spec struct {
	ID        string // unique on this host; letters and digits
	Dir       string // directory of the machine, made by the caller, used for sockets and logs
	VCPUs     int
	MemoryMiB int
	Kernel    string // path; used by Boot alone
	Initramfs string // path; used by Boot alone
	Cmdline   string // appended to the driver's own command line; used by Boot alone
	Disks     []Disk
	NIC       *NIC // nil: no network
	Confine   Confine
	// HugePages makes the memory that Image.Memory serves of pages of 2 MiB, which the host must have ready.
	// It is used by Prepare alone.
	HugePages bool
}

// Disk is a raw image that the guest sees as a block device; the first is /dev/vda.
type Disk struct {
	Path     string
	ReadOnly bool
	// Volatile says that the disk need not survive a crash of the host: what the guest flushes goes to the host's
	// page cache and does not wait for the medium. Clones of the disk are complete all the same.
	Volatile bool
	// Empty says that the disk has no content worth flushing for a capture: it stands for one that comes later.
	Empty bool
	Rate  Rate
}

// Rate bounds the traffic of a device per second; 0 is no bound.
type Rate struct {
	Bytes int64 `json:"bytes,omitempty"`
	Ops   int64 `json:"ops,omitempty"` // requests of a disk, packets of a network card
}

// NIC is the guest's network card.
// Tap stays open in the caller; the driver duplicates it. Adopt does not use it.
type NIC struct {
	Tap    *os.File // nil for a driver with NICFeatures.OpensTapByName
	Device string   // name of the tap; used by a driver with NICFeatures.OpensTapByName
	Netns  *os.File // network namespace that Device is in; nil: the caller's
	MAC    net.HardwareAddr
	In     Rate // towards the guest
	Out    Rate
}

// Confine limits the monitor process.
type Confine struct {
	UID, GID int // 0: the caller's own; files of the machine must be readable by them
	// Enter moves a process that was just started, and runs nothing of the guest yet, to where its limits apply.
	// It may be nil.
	Enter func(pid int) error
	// Jail starts the monitor's process within its limits; Enter is not called then. nil: the driver starts it as any
	// other process.
	Jail Jail
}
