package vmm

// Accelerator is how guest instructions are executed.
type Accelerator string

// The accelerators a driver may report.
const (
	KVM  Accelerator = "kvm"  // hardware virtualization
	TCG  Accelerator = "tcg"  // QEMU's translator
	None Accelerator = "none" // the fake driver: no guest at all
)

// Capabilities describe what a driver can do, so that callers plan by them and never by its name.
type Capabilities struct {
	Name        string // "qemu", "fake"
	Version     string // of the monitor program
	Format      string // of the virtual hardware, if the driver has changed it: images of another format are refused
	Accelerator Accelerator
	Isolation   string // what separates guest and host, for people: "microvm"

	Snapshot bool // Prepare, Load and Capture work
	LiveFork bool // a machine continues after Capture, and many machines load one Capture
	Capture  CaptureFeatures
	Memory   MemoryFeatures
	Disks    DiskFeatures
	NIC      NICFeatures
}

// CaptureFeatures are the properties of a driver's captures.
type CaptureFeatures struct {
	ClosesChannel bool // Capture ends the guest channel: dial again once the machine continues
	Checkpoints   bool // machines are CheckpointMarkers; those of an image with a checkpoint are ready sooner
}

// MemoryFeatures are what a driver can do with a guest's memory.
type MemoryFeatures struct {
	ServesPageFaults bool // of Image.Memory the driver uses Serve; otherwise File
	HugePages        bool // Spec.HugePages is used
	Hotplug          bool // a prepared machine may have more memory than its image, up to Manifest.MaxMemoryMiB
}

// DiskFeatures are what a driver can do with a machine's disks.
type DiskFeatures struct {
	Rates   bool // Disk.Rate is enforced
	Hotplug bool // a prepared machine may have more disks than its image, up to Manifest.MaxDisks
}

// NICFeatures are what a driver can do with a machine's network card.
type NICFeatures struct {
	OpensTapByName bool // the monitor opens NIC.Device in NIC.Netns itself; no other process may have it open
	Rates          bool // the rates of NIC are enforced
}
