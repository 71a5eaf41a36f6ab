package api

import (
	"cmp"
	"path"
	"regexp"
	"strings"
	"time"
)

// Bounds of volumes.
const (
	DefaultVolumeMB = 256
	MaxVolumeMB     = 64 << 10
	MaxVolumeMounts = 8 // of one sandbox
	MaxKept         = 1000
)

// VolumeDir is where volumes are mounted under their names, unless a request says where.
const VolumeDir = "/mnt/"

// Ids of volumes and what belongs to them.
type (
	VolumeID         string // "vol..."
	VolumeSnapshotID string // "vsn...": the content of a volume at one moment, on its host
	BackupID         string // "bkp...": the content of a volume at one moment, in the object store
)

// NewVolumeID returns a new random id.
func NewVolumeID() VolumeID { return VolumeID(newID("vol")) }

// NewVolumeSnapshotID returns a new random id.
func NewVolumeSnapshotID() VolumeSnapshotID { return VolumeSnapshotID(newID("vsn")) }

// NewBackupID returns a new random id.
func NewBackupID() BackupID { return BackupID(newID("bkp")) }

// Valid reports whether id has the form of a volume's id, not whether the volume exists.
func (id VolumeID) Valid() bool { return validID(string(id), "vol") }

// Valid reports whether id has the form of a snapshot's id, not whether the snapshot exists.
func (id VolumeSnapshotID) Valid() bool { return validID(string(id), "vsn") }

// Valid reports whether id has the form of a backup's id, not whether the backup exists.
func (id BackupID) Valid() bool { return validID(string(id), "bkp") }

// Volume is a disk that outlives sandboxes.
type Volume struct {
	ID        VolumeID  `json:"id"`
	Name      string    `json:"name"`
	SizeMB    int       `json:"size_mb" doc:"In MiB."`
	SizeBytes int64     `json:"size_bytes"`
	CreatedAt time.Time `json:"created_at"`
	Workspace Workspace `json:"workspace"`

	UsedBytes  int64     `json:"used_bytes,omitempty" doc:"That deleting it would free, as last measured."`
	AttachedTo SandboxID `json:"attached_to,omitempty" doc:"The sandbox that writes to it."`
	InUseBy    string    `json:"in_use_by,omitempty" doc:"What uses it, if no sandbox does: files, restore."`
	Fence      int64     `json:"fence" doc:"Number of its writers so far."`

	WrittenAt *time.Time    `json:"written_at,omitempty" doc:"When its last writer was detached."`
	Dirty     bool          `json:"dirty,omitempty" doc:"Its last writer ended without unmounting it."`
	Check     *VolumeCheck  `json:"check,omitempty" doc:"Of its last attachment after a crash."`
	Backup    *BackupStatus `json:"backup,omitempty" doc:"Backups in the object store; absent: none, and no policy."`
}

// VolumeCheck is the result of checking the file system of a volume.
type VolumeCheck struct {
	At     time.Time `json:"at"`
	Result string    `json:"result" enum:"clean,repaired,damaged"`
	Log    string    `json:"log,omitempty" doc:"What the check printed, its end."`
}

// BackupStatus says how well a volume is backed up.
type BackupStatus struct {
	Policy       *BackupPolicy `json:"policy,omitempty"`
	LastBackupAt *time.Time    `json:"last_backup_at,omitempty" doc:"The moment of the newest backup."`
	RPOSeconds   *int64        `json:"rpo_seconds,omitempty" doc:"Age of what would be lost; absent: everything would."`
	NextAt       *time.Time    `json:"next_at,omitempty"`
	LastError    string        `json:"last_error,omitempty" doc:"Of the last backup, if it failed."`
}

// BackupPolicy says when a volume is backed up, and which backups are kept.
type BackupPolicy struct {
	Keep         Keep  `json:"keep" doc:"How many to keep; without any, there are no backups."`
	EverySeconds int64 `json:"every_seconds,omitempty" doc:"Time between backups of a volume in use; default 3600."`
	AtDetach     *bool `json:"at_detach,omitempty" doc:"Also when its writer is detached; the default is true."`
}

// Keep is how many backups are kept: the newest of each of the last hours, days and weeks that have one.
type Keep struct {
	Hourly int `json:"hourly,omitempty"`
	Daily  int `json:"daily,omitempty"`
	Weekly int `json:"weekly,omitempty"`
}

// IsZero reports whether nothing is kept.
func (k Keep) IsZero() bool { return k == Keep{} }

// Interval returns the time between backups.
func (p BackupPolicy) Interval() time.Duration {
	return time.Duration(cmp.Or(p.EverySeconds, 3600)) * time.Second
}

// OnDetach reports whether a volume is backed up when its writer is detached.
func (p BackupPolicy) OnDetach() bool { return p.AtDetach == nil || *p.AtDetach }

func (p BackupPolicy) validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{{"hourly", p.Keep.Hourly}, {"daily", p.Keep.Daily}, {"weekly", p.Keep.Weekly}} {
		if f.n < 0 || f.n > MaxKept {
			return invalid("backup.keep."+f.name, "%d is out of range: use 0 to %d", f.n, MaxKept)
		}
	}
	if p.EverySeconds != 0 && (p.EverySeconds < 60 || p.EverySeconds > 7*24*3600) {
		return invalid("backup.every_seconds", "%d is out of range: use 60 to %d", p.EverySeconds, 7*24*3600)
	}
	return nil
}

// CreateVolumeRequest asks for a volume: POST /v1/volumes. At most one source is set; without, the volume is empty.
type CreateVolumeRequest struct {
	Name         string           `json:"name" doc:"1 to 64 of a-z A-Z 0-9 . _ -, unique in the workspace."`
	SizeMB       int              `json:"size_mb,omitempty" doc:"In MiB; 256 if absent, for a copy that of its source."`
	FromVolume   string           `json:"from_volume,omitempty" doc:"Copy this volume, by name or id, as it is now."`
	FromSnapshot VolumeSnapshotID `json:"from_snapshot,omitempty" doc:"Copy this snapshot of a volume."`
	FromBackup   BackupID         `json:"from_backup,omitempty" doc:"Restore this backup, of any node with this store."`
	Backup       *BackupPolicy    `json:"backup,omitempty"`
}

var volumeName = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// ValidateVolumeName checks the name of a new volume, in a field of a request.
func ValidateVolumeName(field, name string) error {
	switch {
	case !volumeName.MatchString(name) || name == "." || name == "..":
		return invalid(field, "%s is not a volume name: use 1 to 64 of a-z A-Z 0-9 . _ -", quote(name))
	case VolumeID(name).Valid():
		return invalid(field, "%s has the form of a volume's id: use another name", quote(name))
	}
	return nil
}

func validateVolumeSize(field string, mb int) error {
	if mb < 1 || mb > MaxVolumeMB {
		return invalid(field, "%d is out of range: use 1 to %d MiB", mb, MaxVolumeMB)
	}
	return nil
}

// Validate checks the request on its own.
func (r *CreateVolumeRequest) Validate() error {
	if err := ValidateVolumeName("name", r.Name); err != nil {
		return err
	}
	sources := 0
	for _, set := range []bool{r.FromVolume != "", r.FromSnapshot != "", r.FromBackup != ""} {
		if set {
			sources++
		}
	}
	switch {
	case sources > 1:
		return invalid("from_volume", "a volume has one source: send one of from_volume, from_snapshot, from_backup")
	case r.FromSnapshot != "" && !r.FromSnapshot.Valid():
		return invalid("from_snapshot", "%s is not the id of a volume's snapshot", quote(string(r.FromSnapshot)))
	case r.FromBackup != "" && !r.FromBackup.Valid():
		return invalid("from_backup", "%s is not the id of a backup", quote(string(r.FromBackup)))
	}
	if r.SizeMB != 0 {
		if err := validateVolumeSize("size_mb", r.SizeMB); err != nil {
			return err
		}
	}
	if r.Backup != nil {
		return r.Backup.validate()
	}
	return nil
}

// VolumePatch changes a volume: PATCH /v1/volumes/{volume}. What is absent stays.
type VolumePatch struct {
	SizeMB int           `json:"size_mb,omitempty" doc:"At least its size; also while it is attached."`
	Backup *BackupPolicy `json:"backup,omitempty" doc:"With nothing to keep: no more backups by themselves."`
}

// Validate checks the request on its own.
func (r *VolumePatch) Validate() error {
	if r.SizeMB != 0 {
		if err := validateVolumeSize("size_mb", r.SizeMB); err != nil {
			return err
		}
	}
	if r.Backup != nil {
		return r.Backup.validate()
	}
	return nil
}

// VolumeSnapshot is the content of a volume at one moment, kept on its host.
type VolumeSnapshot struct {
	ID         VolumeSnapshotID `json:"id"`
	VolumeID   VolumeID         `json:"volume_id"`
	VolumeName string           `json:"volume"`
	Name       string           `json:"name,omitempty"`
	SizeMB     int              `json:"size_mb"`
	CreatedAt  time.Time        `json:"created_at"`
}

// VolumeSnapshotRequest asks for a snapshot of a volume: POST /v1/volumes/{volume}/snapshots.
type VolumeSnapshotRequest struct {
	Name string `json:"name,omitempty" doc:"For people; up to 64 characters like those of a volume's name."`
}

// Validate checks the request on its own.
func (r *VolumeSnapshotRequest) Validate() error {
	if r.Name == "" {
		return nil
	}
	return ValidateVolumeName("name", r.Name)
}

// VolumeCloneRequest asks for a copy of a volume: POST /v1/volumes/{volume}/clone.
type VolumeCloneRequest struct {
	Name   string `json:"name" doc:"Of the copy."`
	SizeMB int    `json:"size_mb,omitempty" doc:"At least that of the source."`
}

// Validate checks the request on its own.
func (r *VolumeCloneRequest) Validate() error {
	return (&CreateVolumeRequest{Name: r.Name, SizeMB: r.SizeMB}).Validate()
}

// VolumeRestoreRequest replaces the content of a volume: POST /v1/volumes/{volume}/restore. Exactly one is set.
type VolumeRestoreRequest struct {
	Snapshot VolumeSnapshotID `json:"snapshot,omitempty" doc:"One of its snapshots."`
	Backup   BackupID         `json:"backup,omitempty" doc:"A backup of the workspace."`
}

// Validate checks the request on its own.
func (r *VolumeRestoreRequest) Validate() error {
	switch {
	case (r.Snapshot == "") == (r.Backup == ""):
		return invalid("snapshot", "send either snapshot or backup")
	case r.Snapshot != "" && !r.Snapshot.Valid():
		return invalid("snapshot", "%s is not the id of a volume's snapshot", quote(string(r.Snapshot)))
	case r.Backup != "" && !r.Backup.Valid():
		return invalid("backup", "%s is not the id of a backup", quote(string(r.Backup)))
	}
	return nil
}

// VolumeBackup is the content of a volume at one moment, in the object store.
type VolumeBackup struct {
	ID         BackupID  `json:"id"`
	VolumeID   VolumeID  `json:"volume_id"`
	VolumeName string    `json:"volume"`
	Status     string    `json:"status" enum:"running,ready,failed,deleting"`
	Reason     string    `json:"reason,omitempty" doc:"manual, schedule or detach."`
	Moment     time.Time `json:"moment" doc:"Whose content it has."`
	SizeMB     int       `json:"size_mb" doc:"Of the volume."`

	StoredBytes   int64  `json:"stored_bytes" doc:"That it uses in the object store."`
	UploadedBytes int64  `json:"uploaded_bytes,omitempty" doc:"That were sent for it."`
	Error         string `json:"error,omitempty" doc:"Of one that failed."`
	Elsewhere     bool   `json:"elsewhere,omitempty" doc:"Another node made it; this one found it in the object store."`
}

// SandboxVolume is a volume that a sandbox has.
type SandboxVolume struct {
	ID        VolumeID `json:"id"`
	Name      string   `json:"name" doc:"As it was when it was attached."`
	MountPath string   `json:"mount_path"`
	ReadOnly  bool     `json:"read_only,omitempty" doc:"It sees the volume as it was when it was attached."`
	Private   bool     `json:"private,omitempty" doc:"A copy that ends with the sandbox, as forks and snapshots have."`
	SizeMB    int      `json:"size_mb"`
}

// VolumeMount names a volume to attach.
type VolumeMount struct {
	Name      string `json:"name" doc:"Name or id of the volume."`
	ReadOnly  bool   `json:"read_only,omitempty" doc:"Attach a private copy as of this moment."`
	MountPath string `json:"mount_path,omitempty" doc:"Absolute; /mnt/ and the name if absent."`

	// Disk attaches the volume in place of the template's data disk of that name; only for services of this server.
	Disk string `json:"-"`
}

// Where returns the directory at which the volume is to be mounted.
func (m VolumeMount) Where() string { return cmp.Or(m.MountPath, VolumeDir+m.Name) }

// Validate checks the request on its own.
func (m *VolumeMount) Validate() error { return m.validate("") }

func (m *VolumeMount) validate(prefix string) error {
	if !volumeName.MatchString(m.Name) {
		return invalid(prefix+"name", "%s is not the name or id of a volume", quote(m.Name))
	}
	switch p := m.MountPath; {
	case p == "":
	case !strings.HasPrefix(p, "/") || path.Clean(p) != p || p == "/" || len(p) > 255 ||
		strings.ContainsAny(p, "\x00\n"):
		return invalid(prefix+"mount_path",
			"%s is not an absolute path of a directory without . and .. , such as /data", quote(p))
	case reservedMount(p):
		return invalid(prefix+"mount_path", "%s belongs to the system: mount it elsewhere, such as at /data", quote(p))
	}
	return nil
}

// reservedMount reports whether a mount at p would break the guest.
func reservedMount(p string) bool {
	switch top, _, _ := strings.Cut(p[1:], "/"); top {
	case "proc", "sys", "dev", "run", "boot":
		return true
	}
	switch p {
	case "/bin", "/sbin", "/lib", "/lib64", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/etc", "/tmp":
		return true
	}
	return false
}

func validateMounts(all []VolumeMount) error {
	if len(all) > MaxVolumeMounts {
		return invalid("volumes", "%d are too many: use at most %d", len(all), MaxVolumeMounts)
	}
	for i := range all {
		if err := all[i].validate("volumes."); err != nil {
			return err
		}
		for _, other := range all[:i] {
			if other.Where() == all[i].Where() {
				return invalid("volumes", "two of them are mounted at %s", quote(other.Where()))
			}
		}
	}
	return nil
}
