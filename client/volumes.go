package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/pandastack/pandastack/api"
)

// Volumes are the calls on volumes, which are named by name or id.
type Volumes struct{ c *Client }

// volumePath returns the path of a volume and what is below it.
func volumePath(name string, below ...string) string {
	return apiPath(append([]string{"volumes", name}, below...)...)
}

// Create makes a volume, empty or as a copy.
func (v *Volumes) Create(ctx context.Context, req api.CreateVolumeRequest) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, post(apiPath("volumes"), req), &out)
	return out, err
}

// List returns all volumes, by name.
func (v *Volumes) List(ctx context.Context) ([]api.Volume, error) {
	var out []api.Volume
	err := v.c.do(ctx, get(apiPath("volumes")), &out)
	return out, err
}

// Get returns one volume.
func (v *Volumes) Get(ctx context.Context, name string) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, get(volumePath(name)), &out)
	return out, err
}

// Update grows a volume, or changes when it is backed up.
func (v *Volumes) Update(ctx context.Context, name string, patch api.VolumePatch) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, call{method: http.MethodPatch, path: volumePath(name), in: patch}, &out)
	return out, err
}

// Delete deletes a volume that no sandbox has; with snapshots also those that were taken of it. Its backups stay.
func (v *Volumes) Delete(ctx context.Context, name string, snapshots bool) error {
	rq := del(volumePath(name))
	rq.idempotent = false // a second response would be not_found
	if snapshots {
		rq.query = url.Values{"snapshots": {"1"}}
	}
	return v.c.do(ctx, rq, nil)
}

// Clone makes a volume with what another has now.
func (v *Volumes) Clone(ctx context.Context, name string, req api.VolumeCloneRequest) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, post(volumePath(name, "clone"), req), &out)
	return out, err
}

// Snapshot keeps what a volume has now on its host.
func (v *Volumes) Snapshot(
	ctx context.Context,
	name string,
	req api.VolumeSnapshotRequest,
) (api.VolumeSnapshot, error) {
	var out api.VolumeSnapshot
	err := v.c.do(ctx, post(volumePath(name, "snapshots"), req), &out)
	return out, err
}

// Snapshots returns the snapshots of a volume.
func (v *Volumes) Snapshots(ctx context.Context, name string) ([]api.VolumeSnapshot, error) {
	var out []api.VolumeSnapshot
	err := v.c.do(ctx, get(volumePath(name, "snapshots")), &out)
	return out, err
}

// DeleteSnapshot deletes a snapshot of a volume.
func (v *Volumes) DeleteSnapshot(ctx context.Context, name string, id api.VolumeSnapshotID) error {
	rq := del(volumePath(name, "snapshots", string(id)))
	rq.idempotent = false // a second response would be not_found
	return v.c.do(ctx, rq, nil)
}

// Restore replaces what a volume has by a snapshot or a backup.
func (v *Volumes) Restore(ctx context.Context, name string, req api.VolumeRestoreRequest) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, post(volumePath(name, "restore"), req), &out)
	return out, err
}

// Import unpacks a tar stream into a directory of a volume. r is read once, so the request is never retried.
func (v *Volumes) Import(ctx context.Context, name, dir string, r io.Reader) error {
	rq := call{method: http.MethodPost, path: volumePath(name, "import"), body: r, size: -1}
	rq.query = url.Values{}
	setNonEmpty(rq.query, "path", dir)
	rq.header = map[string]string{"Content-Type": "application/x-tar"}
	return v.c.do(ctx, rq, nil)
}

// Export returns a directory of a volume as a tar stream, which fails if not all of it arrives. The caller closes it.
func (v *Volumes) Export(ctx context.Context, name, dir string) (io.ReadCloser, error) {
	rq := get(volumePath(name, "export"))
	rq.query = url.Values{}
	setNonEmpty(rq.query, "path", dir)
	res, err := v.c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Backup begins a backup of a volume to the object store.
func (v *Volumes) Backup(ctx context.Context, name string) (api.VolumeBackup, error) {
	var out api.VolumeBackup
	err := v.c.do(ctx, post(volumePath(name, "backups"), nil), &out)
	return out, err
}

// Backups returns the backups of a volume, or with "" those of all volumes.
//
// everywhere adds those that other nodes left in the object store; it needs the name to be "".
func (v *Volumes) Backups(ctx context.Context, name string, everywhere bool) ([]api.VolumeBackup, error) {
	rq := get(apiPath("volume-backups"))
	if name != "" {
		rq = get(volumePath(name, "backups"))
	}
	if everywhere {
		rq.query = url.Values{"everywhere": {"1"}}
	}
	var out []api.VolumeBackup
	err := v.c.do(ctx, rq, &out)
	return out, err
}

// DeleteBackup deletes a backup from the object store.
func (v *Volumes) DeleteBackup(ctx context.Context, id api.BackupID) error {
	rq := del(apiPath("volume-backups", string(id)))
	rq.idempotent = false // a second response would be not_found
	return v.c.do(ctx, rq, nil)
}

// Attach attaches a volume to a running sandbox.
func (v *Volumes) Attach(ctx context.Context, id api.SandboxID, req api.VolumeMount) (api.Sandbox, error) {
	var out api.Sandbox
	err := v.c.do(ctx, post(sandboxPath(id, "volumes"), req), &out)
	return out, err
}

// Detach detaches a volume from a sandbox. force does so although programs use it or the sandbox does not run.
func (v *Volumes) Detach(ctx context.Context, id api.SandboxID, name string, force bool) (api.Sandbox, error) {
	rq := del(sandboxPath(id, "volumes", name))
	rq.idempotent = false // a second response would be not_found
	if force {
		rq.query = url.Values{"force": {"1"}}
	}
	var out api.Sandbox
	err := v.c.do(ctx, rq, &out)
	return out, err
}

// Promote makes a volume of the private copy that a fork, or a sandbox from a snapshot, has of one.
func (v *Volumes) Promote(
	ctx context.Context,
	id api.SandboxID,
	name string,
	req api.VolumeCloneRequest,
) (api.Volume, error) {
	var out api.Volume
	err := v.c.do(ctx, post(sandboxPath(id, "volumes", name, "promote"), req), &out)
	return out, err
}

// ReadFile opens a file of a volume by its path from the root of the volume.
func (v *Volumes) ReadFile(ctx context.Context, name, path string) (*Content, error) {
	rq := get(volumePath(name, "fs"))
	rq.query = url.Values{"path": {path}}
	rq.header = map[string]string{"Accept": "application/octet-stream"}
	res, err := v.c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return &Content{res.Body, res.ContentLength}, nil
}

// WriteFile writes a stream to a path of a volume, whole or not at all, and creates missing parents. The file is on the
// medium when it returns. size is the number of bytes, -1 if it is not known. r is read once.
func (v *Volumes) WriteFile(
	ctx context.Context,
	name, path string,
	r io.Reader,
	size int64,
) (api.FileWritten, error) {
	if size == 0 {
		r = http.NoBody
	}
	rq := call{method: http.MethodPut, path: volumePath(name, "fs"), body: r, size: size}
	rq.query = url.Values{"path": {path}}
	var out api.FileWritten
	err := v.c.do(ctx, rq, &out)
	return out, err
}

// ListFiles returns the entries of a directory of a volume.
func (v *Volumes) ListFiles(ctx context.Context, name, path string) ([]api.FileEntry, error) {
	rq := get(volumePath(name, "fs", "dir"))
	rq.query = url.Values{"path": {path}}
	var out api.DirListing
	err := v.c.do(ctx, rq, &out)
	return out.Entries, err
}

// RemoveFile deletes a file or an empty directory of a volume; recursive includes what is below it.
func (v *Volumes) RemoveFile(ctx context.Context, name, path string, recursive bool) error {
	rq := del(volumePath(name, "fs"))
	rq.idempotent = false // a second response would be not_found
	rq.query = url.Values{"path": {path}}
	if recursive {
		rq.query.Set("recursive", "1")
	}
	return v.c.do(ctx, rq, nil)
}
