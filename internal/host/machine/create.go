package machine

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// CreateRequest asks for a machine from a snapshot.
type CreateRequest struct {
	ID         hostapi.MachineID
	Template   hostapi.TemplateName // only recorded
	Snapshot   hostapi.SnapshotID   // only recorded
	DiskMiB    int                  // of the root disk; 0: as in the snapshot
	MemoryMiB  int                  // 0: as in the snapshot
	Hostname   string               // "": the id
	Env        map[string]string    // nil: as in the snapshot
	Files      map[string]string    // of the guest's identity, by path
	Persistent bool                 // its disks outlive its monitor
	Egress     hostapi.Egress
	Limits     hostapi.Limits
	Group      string // whose machines' disk space is bounded together; "": none
	Labels     map[string]string
	// Volumes are attached and mounted before programs of the user run.
	Volumes []hostapi.VolumeAttachment
}

// Create makes a machine from a snapshot and returns when its guest has confirmed its identity.
// When it fails nothing is left. from names the snapshot; req.Template and req.Snapshot are only recorded. mode is
// the boot mode that the machine reports; "" is the one that applies.
func (m *Manager) Create(
	ctx context.Context,
	req CreateRequest,
	from snapshot.Ref,
	mode hostapi.BootMode,
) (View, error) {
	return m.create(ctx, req, from, mode, false)
}

// CreateEphemeral is Create of a machine that is in no list and that no later process takes over.
func (m *Manager) CreateEphemeral(
	ctx context.Context,
	id hostapi.MachineID,
	from snapshot.Ref,
) (View, error) {
	return m.create(ctx, CreateRequest{ID: id}, from, "", true)
}

func (m *Manager) create(
	ctx context.Context,
	req CreateRequest,
	from snapshot.Ref,
	mode hostapi.BootMode,
	ephemeral bool,
) (_ View, err error) {
	op := m.begin("create")
	defer func() { err = op.end(ctx, err) }()
	if err := m.deps.Network.CheckEgress(req.Egress); err != nil {
		return View{}, fmt.Errorf("create machine %s: %w", req.ID, err)
	}
	if err := m.checkLimits(req.Limits); err != nil {
		return View{}, fmt.Errorf("create machine %s: %w", req.ID, err)
	}
	snap, err := m.acquireSnapshot(op, from)
	if err != nil {
		return View{}, err
	}
	plan, err := planStart(startRequest{
		op: opCreate, image: from, remote: snap.RemoteBacked(), haveMiB: snap.DiskMiB, askMiB: req.DiskMiB,
		memory:  memoryRequest{snap.MemoryMiB, snap.Manifest.MaxMemoryMiB, req.MemoryMiB},
		volumes: len(req.Volumes) > 0,
	}, m.deps.Driver.Capabilities())
	if err != nil {
		return View{}, err
	}
	plan.mode = cmp.Or(mode, plan.mode)
	if err := op.done("acquire"); err != nil {
		return View{}, err
	}
	var warm *warmMonitor
	if !ephemeral && canUseWarm(req, snap, plan) {
		defer m.requestWarm(from)
		if warm = m.takeWarm(ctx, from); warm != nil {
			op.cleanup.Push("remove the warm monitor", warm.op.cleanup.Unwind)
			plan = plan.withWarmMonitor()
		}
	}
	l := m.newLaunch(op, plan)
	l.rec, l.snap, l.disks, l.warm = newRecord(req, snap, plan), snap, snap.DiskPaths(), warm
	l.rec.Ephemeral = ephemeral
	if err := m.planVolumes(ctx, l, req.Volumes); err != nil {
		return View{}, fmt.Errorf("create machine %s: %w", req.ID, wrapNoSpace(err))
	}
	if warm != nil {
		l.rec.ResourceName = string(warm.mc.id)
	}
	if err := l.run(ctx, stepPublish); err != nil {
		return View{}, fmt.Errorf("create machine %s: %w", req.ID, wrapNoSpace(err))
	}
	if warm != nil { // the snapshot was acquired for the warm monitor, and once more for the machine
		if err := m.deps.Store.Release(from); err != nil {
			m.log.Warn("snapshot not released", "machine", req.ID, "snapshot", from, "err", err)
		}
	}
	op.logPhases(l.mc, true)
	return l.mc.view(), nil
}

// newRecord returns the record of a machine that is to be made from a snapshot.
func newRecord(req CreateRequest, snap snapshot.Snapshot, plan startPlan) record {
	in := record{
		ID: req.ID, State: creating, Template: req.Template, Snapshot: req.Snapshot, Base: snap.Ref,
		VCPUs: snap.VCPUs, MemoryMiB: plan.memoryMiB, DiskMiB: plan.diskMiB, Data: snap.Data, Places: snap.Places(),
		Slot: -1, Hostname: req.Hostname, Env: req.Env, Files: req.Files, User: snap.User, Workdir: snap.Workdir,
		Persistent: req.Persistent, Egress: req.Egress, Limits: req.Limits, Group: req.Group, Labels: req.Labels,
		Lazy: snap.RemoteBacked(), Generation: 1, BootMode: plan.mode, Created: time.Now().UTC(),
	}
	if in.Template == "" {
		in.Template = hostapi.TemplateName(snap.Template)
	}
	if in.Hostname == "" {
		in.Hostname = string(req.ID)
	}
	if in.Env == nil {
		in.Env = snap.Env
	}
	return in
}
