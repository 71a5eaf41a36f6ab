package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/host/snapshot/lazy"
	"github.com/pandastack/pandastack/internal/host/snapshot/remote"
	"github.com/pandastack/pandastack/internal/host/volume"
	"github.com/pandastack/pandastack/internal/host/volume/backup"
	"github.com/pandastack/pandastack/internal/vmm"
)

// snapshots is the area of users' snapshots.
const snapshots = "snapshots"

// Config holds the settings of a Host.
type Config struct {
	DataDir string // on a file system with reflinks
	// Machine configures the machines; Dir is set here.
	Machine machine.Config
	Recipes []bake.Recipe
	// LeaveRunning makes Close leave all machines running, for the next process to adopt.
	LeaveRunning bool
	RebakeStale  bool // as of bake.Config
	// Parallel limits how many machines Close hibernates at once; default 4.
	Parallel int
}

// Deps are the components that a Host works with. All but ImportRoot, Objects, Log, Measure, PunchPages and Share are
// required.
type Deps struct {
	// Machine holds those of the machine manager; Store, Emit and Log are set here.
	Machine machine.Deps
	// Platform names the kernel, agent and monitor that boot and run guests here.
	Platform func(ctx context.Context) (string, error)
	// Rewrite copies a disk image into few extents.
	Rewrite func(ctx context.Context, src, dst string) error
	// Share and PunchPages are those of bake.Config. nil: not done.
	Share      func(ctx context.Context, path string, known []string) (int64, error)
	PunchPages func(ctx context.Context, path string) (int64, error)
	// ImportRoot writes the root file system that tar contains into out, an empty file, as an image of the given
	// size, and returns the number of files. It must change nothing but out. An error that the stream causes is
	// hostapi.ErrInvalid. nil: images cannot be imported.
	ImportRoot func(ctx context.Context, tar io.Reader, out *os.File, sizeMiB int) (files int, err error)
	// Objects is the shared object store; nil: snapshots stay on this host.
	Objects *Objects
	Measure snapshot.Measure
	Log     *slog.Logger
}

// Host is the host agent of this computer.
type Host struct {
	id       hostapi.HostID // set by Open
	cfg      Config
	deps     Deps
	hub      hub
	store    *snapshot.Store
	volumes  *volume.Store // nil: there are none
	machines *machine.Manager
	baker    *bake.Baker
	images   images
	remote   *remote.Repository // nil: no object store
	lazy     *lazy.Manager      // nil: likewise
	backups  *backup.Repository // nil: likewise
}

var _ hostapi.Host = (*Host)(nil)

// New returns a host. It does not touch the disk.
func New(cfg Config, deps Deps) (*Host, error) {
	if cfg.DataDir == "" || deps.Platform == nil || deps.Rewrite == nil {
		return nil, errors.New("host agent: data directory, platform and rewrite are required")
	}
	if cfg.Parallel == 0 {
		cfg.Parallel = 4
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	return &Host{cfg: cfg, deps: deps}, nil
}

// Open opens the stores and recovers the machines that an earlier process left.
func (h *Host) Open(ctx context.Context) error {
	if err := os.MkdirAll(h.cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("open host: %w", err)
	}
	id, err := openHostID(filepath.Join(h.cfg.DataDir, hostIDFile))
	if err != nil {
		return fmt.Errorf("open host: %w", err)
	}
	h.id, h.hub.host = id, id
	store, err := snapshot.Open(h.cfg.DataDir, h.deps.Measure, snapshots, bake.Area, bake.PreMountArea)
	if err != nil {
		return err
	}
	if err := h.openRemote(store); err != nil {
		return err
	}
	if err := h.openLazy(ctx, store); err != nil {
		return err
	}
	cfg, deps := h.cfg.Machine, h.deps.Machine
	if h.lazy != nil {
		deps.Lazy = h.lazy
	}
	cfg.Dir = filepath.Join(h.cfg.DataDir, machinesDir)
	deps.Store, deps.Log = store, h.deps.Log
	volumes, err := h.openVolumes()
	if err != nil {
		return err
	}
	deps.Volumes = volumes
	if h.deps.Objects != nil {
		cfg.ReclaimSpace = h.reclaim(volumes)
	}
	deps.Emit = func(e machine.Event) { h.hub.emit(eventOf(e)) }
	machines, err := machine.New(cfg, deps)
	if err != nil {
		return err
	}
	baker, err := bake.New(bake.Config{
		Dir: filepath.Join(h.cfg.DataDir, "bake"), Recipes: h.cfg.Recipes, Machines: machines, Store: store,
		Platform: h.platform(cfg.Places), Rewrite: h.deps.Rewrite, Clone: deps.Disks.Clone, Log: h.deps.Log,
		Share: h.deps.Share, PunchPages: h.deps.PunchPages, RebakeStale: h.cfg.RebakeStale,
		JITWarmup: deps.Driver.Capabilities().Capture.Checkpoints, IsWarmedUp: checkpointStatus(deps.Driver),
	})
	if err != nil {
		return err
	}
	if err := machines.Recover(ctx); err != nil {
		return errors.Join(err, machines.Close())
	}
	if err := h.openBackups(volumes, machines); err != nil {
		return errors.Join(err, machines.Close())
	}
	h.images.dir = filepath.Join(h.cfg.DataDir, "images")
	if err := h.images.open(); err != nil {
		return errors.Join(err, machines.Close())
	}
	h.store, h.machines, h.baker, h.volumes = store, machines, baker, volumes
	return nil
}

// platform returns the platform of templates: machines of one have the places for volumes that it was baked with.
func (h *Host) platform(places int) func(context.Context) (string, error) {
	if places == 0 {
		return h.deps.Platform
	}
	return func(ctx context.Context) (string, error) {
		text, err := h.deps.Platform(ctx)
		return fmt.Sprintf("%s places=%d", text, places), err
	}
}

// checkpointStatus returns a function that reports whether machines of a snapshot start from a monitor checkpoint that
// has been warmed up; nil if the driver has no such checkpoints.
func checkpointStatus(driver vmm.Driver) func(snapshot.Snapshot) (bool, error) {
	d, ok := driver.(vmm.CheckpointStatus)
	if !ok {
		return nil
	}
	return func(s snapshot.Snapshot) (bool, error) { return d.HasCheckpoint(s.Image()) }
}

// Run runs machines and bakes until ctx ends, which cancels bakes under way.
func (h *Host) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.machines.Run(ctx) })
	g.Go(func() error { return h.baker.Run(ctx) })
	if h.remote != nil {
		g.Go(func() error { return h.remote.Run(ctx) })
		g.Go(func() error { h.lazy.Resume(ctx); return nil })
	}
	return g.Wait()
}

// SetLeaveRunning changes Config.LeaveRunning before Close.
func (h *Host) SetLeaveRunning(leave bool) { h.cfg.LeaveRunning = leave }

// Close ends the host after Run has returned.
//
// It hibernates persistent machines and destroys the others, unless Config.LeaveRunning. A persistent machine that
// cannot be hibernated in time is left running. Without a successful Open, Close does nothing.
func (h *Host) Close(ctx context.Context) error {
	if h.machines == nil {
		return nil
	}
	var err error
	if !h.cfg.LeaveRunning {
		err = h.stopMachines(ctx)
	}
	err = errors.Join(err, h.machines.Close())
	if h.lazy != nil {
		err = errors.Join(err, h.lazy.Close())
	}
	return err
}

// stopMachines hibernates or destroys all machines.
func (h *Host) stopMachines(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(h.cfg.Parallel)
	list := h.machines.List()
	errs := make([]error, len(list))
	for i, mc := range list {
		g.Go(func() error {
			switch {
			case !mc.Persistent && mc.State != hostapi.Hibernated && mc.State != hostapi.Failed:
				errs[i] = h.machines.Destroy(ctx, mc.ID, "the host agent ends")
			case mc.State == hostapi.Running || mc.State == hostapi.Paused:
				if errs[i] = h.machines.Hibernate(ctx, mc.ID); errs[i] == nil {
					h.hub.emit(
						hostapi.Event{Time: now(), Machine: mc.ID, Type: "hibernated", Reason: "the host agent ends"},
					)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // the errors are in errs
	return errors.Join(errs...)
}

// Capacity implements hostapi.Host.
func (h *Host) Capacity(context.Context) (hostapi.Capacity, error) {
	if err := h.recovered(); err != nil {
		return hostapi.Capacity{}, err
	}
	can := h.deps.Machine.Driver.Capabilities()
	memory, err := h.machines.Memory()
	if err != nil {
		return hostapi.Capacity{}, err
	}
	space := h.cfg.Machine.FreeSpace
	if space == nil {
		space = machine.StatFS
	}
	disk, diskFree, err := space(h.cfg.DataDir)
	if err != nil {
		return hostapi.Capacity{}, err
	}
	out := hostapi.Capacity{
		Host: h.id, Driver: can.Name, Version: can.Version, Format: can.Format,
		Accelerator: string(can.Accelerator), Isolation: can.Isolation,
		VCPUs: runtime.NumCPU(), MemoryMiB: memory.TotalMiB, MemoryFreeMiB: memory.FreeMiB,
		MemoryAvailableMiB: memory.AvailableMiB, MemoryPromisedMiB: memory.PromisedMiB,
		MemoryPressure: memory.Pressure, MemoryShort: memory.Short,
		DiskMiB: int(disk >> 20), DiskFreeMiB: int(diskFree >> 20), Limits: h.cfg.Machine.Limits,
		DiskReserveMiB: h.machines.DiskReserveMiB(), WaitingForSpace: h.machines.Waiting(),
	}
	out.DiskShort = out.DiskFreeMiB < out.DiskReserveMiB
	for _, mc := range h.machines.List() {
		out.Machines++
		if mc.State == hostapi.Running || mc.State == hostapi.Paused {
			out.Running++
		}
		if !mc.Unresponsive.IsZero() {
			out.Unresponsive++
		}
	}
	return out, nil
}
