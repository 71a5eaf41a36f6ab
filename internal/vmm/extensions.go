package vmm

import "context"

// CompatibilityChecker is a Driver that can check a manifest without starting a monitor.
type CompatibilityChecker interface {
	// CheckCompatible returns nil if Prepare would accept an image with the manifest, or else a *MismatchError.
	CheckCompatible(ctx context.Context, m Manifest) error
}

// PreCapturer is a Machine that can do part of the work of a capture while its guest still runs.
// The guest is stopped for less time then. A call pays right before a guest's workload is frozen; it is optional.
type PreCapturer interface {
	PreCapture(ctx context.Context) error
}

// ForkCapturer is a Machine whose captures are smaller when the machines to load them are known.
// The guest is stopped for less time.
type ForkCapturer interface {
	// CaptureFor is Capture for machines that are already prepared. The capture cannot be loaded into others, nor be
	// saved.
	CaptureFor(ctx context.Context, into []Machine) (Capture, error)
}

// CheckpointMarker is a Machine whose monitor has state worth keeping, such as translated code.
type CheckpointMarker interface {
	// MarkWarmedUp says that the guest has done what the machines of its next image will do first. That image gets a
	// checkpoint of the monitor.
	MarkWarmedUp()
}

// CheckpointStatus is a Driver of CheckpointMarkers.
type CheckpointStatus interface {
	// HasCheckpoint reports whether an image has a checkpoint of its monitor that can be used: an image may have
	// none, or one of an earlier boot of the host.
	HasCheckpoint(image Image) (bool, error)
}

// Reclaimer is a Machine whose guest can be asked to return memory while it runs.
type Reclaimer interface {
	// Reclaim asks the guest to do without mib MiB in total; 0 gives all of it back to the guest. A guest may
	// refuse: this is a request and no limit. The error is ErrNotActive until the guest's driver is active.
	Reclaim(ctx context.Context, mib int) error
}

// MetadataSetter is a Machine whose guest can query its monitor for metadata, as guests of clouds do.
type MetadataSetter interface {
	// SetMetadata sets the document that the guest gets: a JSON object, which replaces the one before. If it is set
	// before Load, the guest finds it with its first instruction.
	SetMetadata(ctx context.Context, document []byte) error
}

// SpaceWaiter is a Machine whose monitor stops the guest when a write finds no space on the host.
// No write is lost: once Resume lets the guest continue, the monitor repeats the write, and stops the guest again if
// there still is no space.
type SpaceWaiter interface {
	// OutOfSpace receives a value after the monitor has stopped the guest. Values that are not received are merged.
	OutOfSpace() <-chan struct{}
	// WaitsForSpace reports whether the monitor has stopped the guest for that reason and it has not continued since.
	WaitsForSpace() bool
}

// Halter is a Machine that stops sooner if it need not be captured.
type Halter interface {
	// Halt is Pause without the preparations for a capture.
	Halt(ctx context.Context) error
}

// DiskSwapper is a Machine whose disks can be replaced, before its guest runs and while it does.
type DiskSwapper interface {
	// SwapDisk replaces disk n. Before Load the new one is the disk of the machine as if it had been in its Spec.
	// Afterwards its size is announced to the guest, which must not use the old one any more; after an error the
	// machine has one of the two, and the call can be repeated with either. A monitor whose disk could not be replaced
	// before Load must not be loaded.
	SwapDisk(ctx context.Context, n int, disk Disk) error
}

// DiskResizer is a Machine whose guest can learn of a larger disk while it runs.
type DiskResizer interface {
	// ResizeDisk announces the size of disk n, whose file has grown, to the guest of a machine that was loaded.
	ResizeDisk(ctx context.Context, n int) error
}
