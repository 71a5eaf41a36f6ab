package httpapi

import (
	"context"
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/volume"
)

const (
	volumesPath = "/v1/volumes"
	volumePath  = volumesPath + "/{volume}"
)

func volumeRoutes() []route {
	const snapshots, attached = volumePath + "/snapshots", sandboxPath + "/volumes"
	const backups = "/v1/volume-backups"
	dir := param{"path", "string", "Directory of the volume; its root if absent."}
	tar := endpoint{status: http.StatusNoContent, takes: "application/x-tar", handle: importVolume}
	return tagged("volumes", append([]route{
		post(volumesPath, "Create a volume, empty or as a copy", jsonInOut(201, createVolume)),
		get(volumesPath, "List volumes, by name", jsonOut(200, listVolumes)),
		get(volumePath, "Get a volume by name or id", jsonOut(200, onVolume((*volume.Service).Get))),
		patch(volumePath, "Grow a volume, or change its backups", jsonInOut(200, onVolumeIn((*volume.Service).Update))),
		del(volumePath, "Delete a volume that no sandbox has", noContent(deleteVolume),
			param{"snapshots", "string", "1: with its snapshots. Its backups stay."}),
		post(volumePath+"/clone", "Copy a volume as it is now", jsonInOut(201, onVolumeIn((*volume.Service).Clone))),
		post(snapshots, "Keep what a volume has now", jsonInOut(201, onVolumeIn((*volume.Service).Snapshot))),
		get(snapshots, "List the snapshots of a volume", jsonOut(200, onVolume((*volume.Service).Snapshots))),
		del(snapshots+"/{volume_snapshot}", "Delete a snapshot of a volume", noContent(deleteVolumeSnapshot)),
		post(volumePath+"/restore", "Replace what a volume has by a snapshot or a backup",
			jsonInOut(200, onVolumeIn((*volume.Service).Restore))),
		post(volumePath+"/import", "Unpack a tar stream into a volume", tar, dir),
		get(volumePath+"/export", "Get a directory of a volume as a tar stream",
			raw("application/x-tar", exportVolume), dir),
		post(volumePath+"/backups", "Begin a backup of a volume to the object store",
			jsonOut(202, onVolume((*volume.Service).Backup))),
		get(volumePath+"/backups", "List the backups of a volume", jsonOut(200, listBackups)),
		get(backups, "List the backups of all volumes, also of those that were deleted", jsonOut(200, listBackups),
			param{"everywhere", "string", "1: also those that other nodes left in the object store."}),
		del(backups+"/{backup}", "Delete a backup", noContent(deleteBackup)),
		post(attached, "Attach a volume to a sandbox that runs", jsonInOut(200, attachVolume)),
		del(attached+"/{volume}", "Detach a volume from a sandbox", jsonOut(200, detachVolume),
			param{"force", "string", "1: although programs use it, or the sandbox does not run."}),
		post(attached+"/{volume}/promote", "Make a volume of the private copy that a fork has",
			jsonInOut(201, promoteVolume)),
	}, filesBelow(volumePath)...)...)
}

// volumes returns the service for volumes and the name in the path.
func (rq *request) volumes() (*volume.Service, string, error) {
	if rq.s.deps.Volumes == nil {
		return nil, "", api.Errorf(api.Unsupported, "this server has no volumes")
	}
	return rq.s.deps.Volumes, rq.r.PathValue("volume"), nil
}

// onVolume is a handler that calls a method for the volume in the path.
func onVolume[Out any](
	do func(*volume.Service, context.Context, auth.Principal, string) (Out, error),
) func(*request) (Out, error) {
	return func(rq *request) (out Out, err error) {
		s, name, err := rq.volumes()
		if err != nil {
			return out, err
		}
		return do(s, rq.r.Context(), rq.p, name)
	}
}

// onVolumeIn is onVolume for a method with a request.
func onVolumeIn[In, Out any](
	do func(*volume.Service, context.Context, auth.Principal, string, In) (Out, error),
) func(*request, In) (Out, error) {
	return func(rq *request, in In) (Out, error) {
		return onVolume(func(s *volume.Service, ctx context.Context, p auth.Principal, name string) (Out, error) {
			return do(s, ctx, p, name, in)
		})(rq)
	}
}

func createVolume(rq *request, req api.CreateVolumeRequest) (api.Volume, error) {
	s, _, err := rq.volumes()
	if err != nil {
		return api.Volume{}, err
	}
	return s.Create(rq.r.Context(), rq.p, req)
}

func listVolumes(rq *request) ([]api.Volume, error) {
	s, _, err := rq.volumes()
	if err != nil {
		return nil, err
	}
	return s.List(rq.r.Context(), rq.p)
}

func deleteVolume(rq *request) error {
	s, name, err := rq.volumes()
	if err != nil {
		return err
	}
	return s.Delete(rq.r.Context(), rq.p, name, rq.boolParam("snapshots"))
}

func deleteVolumeSnapshot(rq *request) error {
	s, name, err := rq.volumes()
	if err != nil {
		return err
	}
	return s.DeleteSnapshot(rq.r.Context(), rq.p, name, api.VolumeSnapshotID(rq.r.PathValue("volume_snapshot")))
}

func importVolume(rq *request) error {
	s, name, err := rq.volumes()
	if err != nil {
		return err
	}
	if err := s.Import(rq.r.Context(), rq.p, name, rq.r.URL.Query().Get("path"), rq.r.Body); err != nil {
		return err
	}
	rq.w.WriteHeader(http.StatusNoContent)
	return nil
}

func exportVolume(rq *request) error {
	s, name, err := rq.volumes()
	if err != nil {
		return err
	}
	rq.w.Header().Set("Content-Type", "application/x-tar")
	return s.Export(rq.r.Context(), rq.p, name, rq.r.URL.Query().Get("path"), rq.w)
}

func listBackups(rq *request) ([]api.VolumeBackup, error) {
	s, name, err := rq.volumes()
	if err != nil {
		return nil, err
	}
	return s.Backups(rq.r.Context(), rq.p, name, rq.boolParam("everywhere"))
}

func deleteBackup(rq *request) error {
	s, _, err := rq.volumes()
	if err != nil {
		return err
	}
	return s.DeleteBackup(rq.r.Context(), rq.p, api.BackupID(rq.r.PathValue("backup")))
}

// onAttached calls do with the sandbox and the volume in the path.
func onAttached[Out any](
	rq *request,
	do func(s *volume.Service, id api.SandboxID, name string) (Out, error),
) (out Out, err error) {
	box, err := onSandbox(rq, rq.s.deps.Sandboxes.Get)
	if err != nil {
		return out, err
	}
	s, name, err := rq.volumes()
	if err != nil {
		return out, err
	}
	return do(s, box.ID, name)
}

func attachVolume(rq *request, req api.VolumeMount) (api.Sandbox, error) {
	return onAttached(rq, func(s *volume.Service, id api.SandboxID, _ string) (api.Sandbox, error) {
		return s.Attach(rq.r.Context(), rq.p, id, req)
	})
}

func detachVolume(rq *request) (api.Sandbox, error) {
	return onAttached(rq, func(s *volume.Service, id api.SandboxID, name string) (api.Sandbox, error) {
		return s.Detach(rq.r.Context(), rq.p, id, name, rq.boolParam("force"))
	})
}

func promoteVolume(rq *request, req api.VolumeCloneRequest) (api.Volume, error) {
	return onAttached(rq, func(s *volume.Service, id api.SandboxID, name string) (api.Volume, error) {
		return s.Promote(rq.r.Context(), rq.p, id, name, req)
	})
}
