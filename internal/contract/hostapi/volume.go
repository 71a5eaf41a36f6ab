package hostapi

import (
	"context"
	"time"
)

type (
	// VolumeID names a volume: 1 to 64 lower-case letters and digits.
	VolumeID string
	// BackupID names a backup of a volume in the object store: 1 to 64 lower-case letters and digits.
	BackupID string
)

// Volume is a disk with an ext4 file system that outlives the machines it is attached to.
type Volume struct {
	ID      VolumeID
	Host    HostID
	SizeMiB int
	Bytes   int64 // that removing it would free, as last measured
	// Frozen: its content never changes, as of a snapshot of another volume. It can be attached read-only alone.
	Frozen bool
	// Machine is the machine that writes to it; "": none.
	Machine MachineID
	// Fence is the highest of its writers so far.
	Fence uint64
	// Dirty: the last writer ended without unmounting the file system. The next one recovers the journal and checks
	// the file system before its programs run.
	Dirty  bool
	Check  *VolumeCheck // of the last attachment of a dirty volume; nil: none so far
	Group  string
	Labels map[string]string
	// Created is when the volume was made, and Written when its last writer was detached.
	Created, Written time.Time
}

// VolumeCheck is the result of checking a file system.
type VolumeCheck struct {
	Time time.Time
	// Result is "clean" if there was nothing to repair, "repaired", or "damaged" if the check could not repair it:
	// the volume can then be attached read-only alone.
	Result string
	Log    string // what the check printed, the last 4 KiB
}

// CreateVolume asks for a volume. At most one of From and Template is set; without them the volume is empty.
type CreateVolume struct {
	ID VolumeID
	// SizeMiB is the size; 0 for a copy: as its source. A copy is never smaller than its source.
	SizeMiB int
	// From makes a copy of another volume as of this moment. What the guest has written back is in it; the guest of
	// a volume that is attached is asked to write back everything first.
	From VolumeID
	// Machine copies what this machine has instead: its private copy of From.
	Machine MachineID
	// Fence makes the private copy itself the volume, if it is not 0: the machine goes on writing to it, as its only
	// writer, with this fence. ErrInvalid: the machine is not persistent, or the copy is not in place of a data disk.
	Fence uint64
	// Template and Disk make a copy of a data disk of a baked template, to be attached in its place.
	Template TemplateName
	Disk     string
	Frozen   bool
	Group    string // as of Create
	Labels   map[string]string
}

// VolumeAttachment asks to attach a volume to a machine.
type VolumeAttachment struct {
	Volume VolumeID
	// Mount is the directory at which the guest mounts it, an absolute path; the guest makes it if it is missing.
	Mount string
	// ReadOnly attaches a private copy of the volume as of this moment, mounted read-only.
	ReadOnly bool
	// Fence orders the writers of a volume: a host refuses one whose fence is lower than an earlier one's with
	// ErrInUse. It is not used with ReadOnly.
	Fence uint64
	// Disk attaches the volume in place of the template's data disk of that name, where that is mounted; Mount is
	// empty. The volume is a copy of that disk that was never attached.
	Disk string
}

// AttachedVolume is a volume that a machine has.
type AttachedVolume struct {
	Volume   VolumeID
	Mount    string
	ReadOnly bool
	// Private: it is a copy that ends with the machine, as those of forks, of machines from snapshots, and of
	// read-only attachments are.
	Private bool
	SizeMiB int
}

// VolumeHost is the part of a Host that keeps volumes.
//
// A volume has at most one writer, whose writes that the guest flushed are on the medium. A fork or a snapshot of a
// machine has memory and volumes of one moment: children, and machines from the snapshot, get private copies. A
// machine keeps its volumes while it is hibernated or stopped.
type VolumeHost interface {
	// CreateVolume makes a volume. ErrExists: the id is in use. ErrNoSpace: the host does not have the space. After an
	// error nothing is left.
	CreateVolume(ctx context.Context, req CreateVolume) (Volume, error)
	// GetVolume returns one volume. ErrNotFound is a statement that this host does not have it; see Get.
	GetVolume(ctx context.Context, id VolumeID) (Volume, error)
	Volumes(ctx context.Context) ([]Volume, error)
	// ResizeVolume makes a volume larger, and its file system, also while it is attached. ErrInvalid: it is larger
	// already, or frozen.
	ResizeVolume(ctx context.Context, id VolumeID, sizeMiB int) (Volume, error)
	// DeleteVolume removes a volume. ErrInUse: a machine writes to it. Copies of it stay. An unknown id is no error.
	DeleteVolume(ctx context.Context, id VolumeID) error
	// AttachVolume attaches a volume to a running machine and mounts it. ErrInUse: another machine writes to it.
	// ErrUnsupported: the machine has no place for one more disk. After an error it is not attached.
	AttachVolume(ctx context.Context, id MachineID, req VolumeAttachment) (Machine, error)
	// DetachVolume unmounts a volume and takes it from a machine. ErrInUse: programs of the guest use it, unless
	// force, which ends their access. A machine that is not running, or whose guest does not answer, loses the volume
	// as at a power failure, and with it its memory; without force that is ErrWrongState.
	DetachVolume(ctx context.Context, id MachineID, volume VolumeID, force bool) (Machine, error)

	// BackupVolume uploads a volume as of this moment. What the object store has of earlier backups of the workspace
	// is not uploaded again, unless its parts have become so small that it is better stored as a whole. A backup that
	// the store has already stays as it is, and its result is returned; ErrExists: it is of another volume. After an
	// error nothing of it is visible in the store. The labels are returned by Backups.
	BackupVolume(
		ctx context.Context, workspace string, id VolumeID, backup BackupID, labels map[string]string,
	) (BackupResult, error)
	// Backups lists the backups of a workspace that the object store has, of any host that shares it.
	Backups(ctx context.Context, workspace string) ([]Backup, error)
	// RestoreVolume makes a volume of a backup, of any host that shares the store. From, Machine, Template and Disk
	// of req are empty. ErrNotFound: there is no such backup.
	RestoreVolume(ctx context.Context, workspace string, backup BackupID, req CreateVolume) (Volume, error)
	// DeleteBackup removes a backup from the object store. An unknown id is no error.
	DeleteBackup(ctx context.Context, workspace string, backup BackupID) error
}

// Backup is a backup in the object store.
type Backup struct {
	ID      BackupID
	Volume  VolumeID
	SizeMiB int       // of the volume
	Moment  time.Time // whose content it has
	Stored  int64     // bytes that it uses in the store, including those shared with others
	Labels  map[string]string
}

// BackupResult is the result of a backup.
type BackupResult struct {
	Moment   time.Time // whose content it has, in whole microseconds
	SizeMiB  int       // of the volume
	Bytes    int64     // of content that was not in the store, before compression
	Uploaded int64     // bytes sent to the store
	Stored   int64     // bytes that the backup uses in the store, including those shared with others
	Took     time.Duration
}
