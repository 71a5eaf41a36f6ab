package quota

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Kind is something that a quota bounds.
type Kind string

// The kinds.
const (
	Sandboxes    Kind = "sandboxes"
	VCPUs        Kind = "vcpus"
	Memory       Kind = "memory_mib"
	Disk         Kind = "disk_mib"
	DiskUsed     Kind = "disk_used_mib"
	Snapshots    Kind = "snapshots"
	SnapshotSize Kind = "snapshot_mib"
	Uploads      Kind = "upload_mib"
	Templates    Kind = "templates"
	Builds       Kind = "builds"
	Volumes      Kind = "volumes"
	VolumeSize   Kind = "volume_mib"
	VolumeSnaps  Kind = "volume_snapshots"
	Databases    Kind = "databases"
	Apps         Kind = "apps"
	Schedules    Kind = "schedules"
	Functions    Kind = "functions"
	EgressRate   Kind = "egress_mbit"
	Connections  Kind = "connections"
	ConnectRate  Kind = "new_connections_per_s"
)

// MiB is one MiB in bytes, in which Amounts of kinds with the unit MiB are.
const MiB = 1 << 20

// kindInfo is a line of the table.
type kindInfo struct {
	kind    Kind
	unit    string // of the quota, "" for a number of things
	scale   int64  // of one unit, in which Amounts are
	remedy  string // what frees some
	summary string
	// count adds up what a workspace uses. nil: a rate, which is a limit of each sandbox and not used up.
	count func(ctx context.Context, tx *store.Tx, workspace string) (int64, error)
}

// kinds is the table of what can be bounded, in the order in which it is shown.
var kinds = []kindInfo{
	{Sandboxes, "", 1, "delete sandboxes", "Sandboxes in any state.", countSandboxes},
	{VCPUs, "", 1, "hibernate or delete sandboxes", "Processors of sandboxes that are not hibernated.", countVCPUs},
	{Memory, "MiB", MiB, "hibernate or delete sandboxes", "Memory of sandboxes that are not hibernated.", countMemory},
	{
		Disk, "MiB", MiB, "delete sandboxes, snapshots or templates",
		"Size of the disks of sandboxes, with the data of snapshots and of built templates.", countDisk,
	},
	{
		DiskUsed, "MiB", MiB, "remove files in sandboxes, or delete sandboxes",
		"What sandboxes have written to their disks, as measured last.", countDiskUsed,
	},
	{Snapshots, "", 1, "delete snapshots", "Snapshots.", countSnapshots},
	{SnapshotSize, "MiB", MiB, "delete snapshots", "Data of snapshots.", countSnapshotBytes},
	{
		Uploads, "MiB", MiB, "wait until builds have ended",
		"Uploaded inputs of builds, and layers of images while a build downloads them.", countUploads,
	},
	{Templates, "", 1, "delete templates", "Templates that were built.", countTemplates},
	{Builds, "", 1, "wait, or cancel builds", "Builds that have not ended.", countBuilds},
	{Volumes, "", 1, "delete volumes", "Volumes.", countVolumes},
	{VolumeSize, "MiB", MiB, "delete volumes", "Sizes of volumes.", countVolumeBytes},
	{VolumeSnaps, "", 1, "delete snapshots of volumes", "Snapshots of volumes.", countVolumeSnapshots},
	{Databases, "", 1, "delete databases", "Databases.", countDatabases},
	{Apps, "", 1, "delete apps", "Apps, with their previews.", countApps},
	{Schedules, "", 1, "delete schedules", "Schedules.", countSchedules},
	{Functions, "", 1, "delete functions", "Functions.", countFunctions},
	{EgressRate, "Mbit/s", 1, "", "What each sandbox may send.", nil},
	{Connections, "", 1, "", "Connections that each sandbox may have opened at once.", nil},
	{ConnectRate, "per second", 1, "", "Connections that each sandbox may open.", nil},
}

// runningStates are the states in which a sandbox may have memory and processors of its host.
var runningStates = []string{
	string(api.Creating), string(api.Running), string(api.Paused), string(api.Hibernating), string(api.Waking),
	string(api.Stopping),
}

func countSandboxes(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	sums, err := tx.SandboxSums(ctx, workspace)
	return sums.Count, err
}

func countVCPUs(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	sums, err := tx.SandboxSums(ctx, workspace, runningStates...)
	return sums.VCPUs, err
}

func countMemory(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	sums, err := tx.SandboxSums(ctx, workspace, runningStates...)
	return sums.MemoryMiB * MiB, err
}

func countDisk(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	sums, err := tx.SandboxSums(ctx, workspace)
	if err != nil {
		return 0, err
	}
	bytes := sums.DiskMiB * MiB
	data, err := tx.DataDisks(ctx, workspace)
	if err != nil {
		return 0, err
	}
	for _, text := range data {
		var disks []api.DataDisk
		if err := json.Unmarshal([]byte(text), &disks); err != nil {
			return 0, fmt.Errorf("data disks of a sandbox of workspace %s: %w", workspace, err)
		}
		for _, d := range disks {
			bytes += int64(d.SizeMB) * MiB
		}
	}
	_, snapshots, err := tx.SnapshotSums(ctx, workspace)
	if err != nil {
		return 0, err
	}
	versions, err := tx.VersionBytes(ctx, workspace)
	return bytes + snapshots + versions, err
}

func countDiskUsed(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.SandboxDiskBytes(ctx, workspace)
}

func countSnapshots(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	n, _, err := tx.SnapshotSums(ctx, workspace)
	return n, err
}

func countSnapshotBytes(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	_, bytes, err := tx.SnapshotSums(ctx, workspace)
	return bytes, err
}

func countUploads(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.UploadBytes(ctx, workspace)
}

func countTemplates(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountTemplates(ctx, workspace)
}

func countBuilds(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountBuilds(ctx, workspace, store.UnendedBuildStates)
}

func countVolumes(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	n, _, err := tx.VolumeSums(ctx, workspace)
	return n, err
}

func countVolumeBytes(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	_, mib, err := tx.VolumeSums(ctx, workspace)
	return mib * MiB, err
}

func countVolumeSnapshots(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountVolumeSnapshots(ctx, workspace)
}

func countDatabases(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountDatabases(ctx, workspace)
}

func countApps(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountApps(ctx, workspace)
}

func countSchedules(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return tx.CountSchedules(ctx, workspace)
}

func countFunctions(ctx context.Context, tx *store.Tx, workspace string) (int64, error) {
	return functionstore.In(tx).Count(ctx, workspace)
}

// infoOf returns the line of a kind.
func infoOf(kind Kind) (kindInfo, bool) {
	for _, info := range kinds {
		if info.kind == kind {
			return info, true
		}
	}
	return kindInfo{}, false
}

// Kinds returns all kinds, in the order in which they are shown.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kinds))
	for _, info := range kinds {
		all = append(all, info.kind)
	}
	return all
}

// Defaults returns the quotas of workspaces without their own from settings, in units of the kinds.
func Defaults(set config.Quota) map[Kind]int64 {
	return map[Kind]int64{
		Sandboxes: int64(set.Sandboxes), VCPUs: int64(set.VCPUs), Memory: int64(set.MemoryMiB),
		Disk: int64(set.DiskMiB), DiskUsed: int64(set.DiskUsedMiB),
		Snapshots: int64(set.Snapshots), SnapshotSize: int64(set.SnapshotMiB),
		Volumes: int64(set.Volumes), VolumeSize: int64(set.VolumeMiB), VolumeSnaps: int64(set.VolumeSnapshots),
		Databases: int64(set.Databases), Apps: int64(set.Apps),
		Schedules: int64(set.Schedules), Functions: int64(set.Functions),
		Uploads: int64(set.UploadMiB), Templates: int64(set.Templates), Builds: int64(set.Builds),
		EgressRate: int64(set.EgressMbit), Connections: int64(set.Connections), ConnectRate: int64(set.NewConnections),
	}
}
