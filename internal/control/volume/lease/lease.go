// Package lease decides who may write to a volume.
//
// A volume has at most one holder, and a fencing number that grows with every holder. Both are columns of its row,
// changed by compare-and-set in the transaction that also writes or removes the row of the holder: a lease exists
// exactly as long as what holds it, whatever process is killed at whatever moment. The fencing number goes with the
// attachment to the host, which refuses a lower one than it has seen; so a host that was unreachable cannot let an old
// holder write beside a new one.
//
// The functions work in transactions of the caller and keep no state.
package lease

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Kinds of holders beside hostapi.OwnerSandbox.
const (
	Files   = "files"   // a hidden machine through which files are read and written; its id
	Restore = "restore" // an operation that replaces the content
)

// Sandbox returns a sandbox as a holder.
func Sandbox(id api.SandboxID) string {
	return hostapi.Owner{Kind: hostapi.OwnerSandbox, ID: string(id)}.String()
}

// Resolve finds a volume of a workspace by name or id. The error is not_found if there is none that is ready.
//
// owner is the service's object that asks, zero for a user: the volumes of such an object are only for that object.
func Resolve(
	ctx context.Context,
	tx *store.Tx,
	workspace api.Workspace,
	owner hostapi.Owner,
	name string,
) (store.Volume, error) {
	var v store.Volume
	var err error
	if api.VolumeID(name).Valid() {
		v, err = tx.Volume(ctx, name)
	} else {
		v, err = tx.VolumeByName(ctx, string(workspace), name)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return v, err
	}
	if err != nil || v.Workspace != string(workspace) || v.State != store.VolumeReady || v.OwnedBy != owner.String() {
		return store.Volume{}, api.Errorf(api.NotFound, "volume %.70q not found: list them at /v1/volumes", name)
	}
	return v, nil
}

// Acquire makes a holder the only writer of a volume. instance is the process that has an operation under way on the
// volume until it sets the instance to ""; "" if the row of the holder is enough to find out what became of it.
func Acquire(
	ctx context.Context,
	tx *store.Tx,
	v store.Volume,
	holder, instance string,
) (store.Volume, error) {
	got, err := tx.AcquireVolume(ctx, v.ID, holder, instance, store.Micros(time.Now()))
	if errors.Is(err, store.ErrNotFound) {
		if v, err = tx.Volume(ctx, v.ID); err == nil {
			err = InUse(v)
		}
	}
	return got, err
}

// InUse returns the error for a second writer of a volume.
func InUse(v store.Volume) error {
	holder := hostapi.ParseOwner(v.Holder)
	e := api.Errorf(api.VolumeInUse, "volume %s is in use: try again", v.Name)
	switch holder.Kind {
	case hostapi.OwnerSandbox:
		e = api.Errorf(api.VolumeInUse, "volume %s is attached to sandbox %s: detach it there, end that sandbox, or "+
			"attach the volume with read_only", v.Name, holder.ID).With("sandbox_id", holder.ID)
	case Files:
		e = api.Errorf(api.VolumeInUse, "files of volume %s are being read or written: try again", v.Name)
	case Restore:
		e = api.Errorf(api.VolumeInUse, "volume %s is being restored: try again", v.Name)
	}
	return e.With("volume", v.Name)
}

// Attach takes what a sandbox needs to have volumes: the leases of those that it may write to. It returns what to ask
// the host for, and what the sandbox has then.
func Attach(
	ctx context.Context,
	tx *store.Tx,
	workspace api.Workspace,
	owner hostapi.Owner,
	sandbox api.SandboxID,
	instance string,
	mounts []api.VolumeMount,
) (ask []hostapi.VolumeAttachment, has []api.SandboxVolume, err error) {
	for _, m := range mounts {
		v, err := Resolve(ctx, tx, workspace, owner, m.Name)
		if err != nil {
			return nil, nil, err
		}
		if m.MountPath == "" && m.Disk == "" {
			m.MountPath = api.VolumeDir + v.Name
		}
		if !m.ReadOnly {
			if v, err = Acquire(ctx, tx, v, Sandbox(sandbox), instance); err != nil {
				return nil, nil, err
			}
		}
		ask = append(ask, hostapi.VolumeAttachment{Volume: hostapi.VolumeID(v.Disk), Mount: m.MountPath,
			ReadOnly: m.ReadOnly, Fence: uint64(v.Fence), Disk: m.Disk}) //nolint:gosec // it only grows, from 0
		has = append(has, api.SandboxVolume{ID: api.VolumeID(v.ID), Name: v.Name, MountPath: m.MountPath,
			ReadOnly: m.ReadOnly, SizeMB: v.SizeMiB})
	}
	return ask, has, nil
}

// Release takes the leases of a sandbox that has ended on its host.
//
// It makes due the backups that volumes want when a writer leaves.
func Release(ctx context.Context, tx *store.Tx, sandbox api.SandboxID) error {
	held, err := tx.Volumes(ctx, store.VolumeQuery{Holder: Sandbox(sandbox)})
	if err != nil {
		return err
	}
	for _, v := range held {
		if err := Give(ctx, tx, v); err != nil {
			return err
		}
	}
	return nil
}

// Give takes the lease of a volume from its holder, which must still be the same: store.ErrNotFound if it is not.
func Give(ctx context.Context, tx *store.Tx, v store.Volume) error {
	at := store.Micros(time.Now())
	v.Holder, v.Instance, v.Written, v.NextDisk = "", "", at, ""
	if p := Policy(v); p != nil && p.OnDetach() && !p.Keep.IsZero() {
		v.BackupDue = at
	}
	return tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence,
		"holder", "instance", "written", "next_disk", "backup_due")
}

// Undo is Give for a holder that has written nothing.
func Undo(ctx context.Context, tx *store.Tx, v store.Volume) error {
	v.Holder, v.Instance, v.NextDisk = "", "", ""
	return tx.UpdateVolume(ctx, &v, store.VolumeReady, v.Fence, "holder", "instance", "next_disk")
}

// Change is a change of what volumes a sandbox has.
type Change struct {
	Doing   string // for errors
	Event   string
	Running bool // it needs a sandbox that runs; a hibernated one is woken
	// Do makes the change on the host. known are the ids and names of volumes that it may add.
	Do func(ctx context.Context, box api.Sandbox) (m hostapi.Machine, known []api.SandboxVolume, err error)
}

// Policy returns the policy for backups of a volume; nil if it has none.
func Policy(v store.Volume) *api.BackupPolicy {
	var p api.BackupPolicy
	if v.Policy == "" || json.Unmarshal([]byte(v.Policy), &p) != nil {
		return nil
	}
	return &p
}

// Names returns what a machine has, under the ids and names of its volumes.
//
// They are those that known has for the mount points, or the store for the disks.
func Names(
	ctx context.Context,
	tx *store.Tx,
	machine []hostapi.AttachedVolume,
	known []api.SandboxVolume,
) ([]api.SandboxVolume, error) {
	var all []api.SandboxVolume
	for _, a := range machine {
		has := api.SandboxVolume{ID: api.VolumeID(a.Volume), MountPath: a.Mount, ReadOnly: a.ReadOnly,
			Private: a.Private && !a.ReadOnly, SizeMB: a.SizeMiB}
		i := slices.IndexFunc(known, func(k api.SandboxVolume) bool {
			return k.MountPath == a.Mount && k.Private == has.Private && k.Name != ""
		})
		if i >= 0 {
			has.ID, has.Name = known[i].ID, known[i].Name
		} else if v, err := tx.VolumeByDisk(ctx, string(a.Volume)); err == nil {
			has.ID, has.Name = api.VolumeID(v.ID), v.Name
		} else if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		all = append(all, has)
	}
	return all, nil
}

// Same reports whether a sandbox is known to have what its machine has.
func Same(known []api.SandboxVolume, machine []hostapi.AttachedVolume) bool {
	return slices.EqualFunc(known, machine, func(k api.SandboxVolume, a hostapi.AttachedVolume) bool {
		return k.MountPath == a.Mount && k.SizeMB == a.SizeMiB && k.ReadOnly == a.ReadOnly &&
			k.Private == (a.Private && !a.ReadOnly)
	})
}
