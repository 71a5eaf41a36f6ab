package machine

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Boot asks for a machine that starts with clones of disk images and no memory.
// It boots cold, or continues from a pre-mount snapshot: a machine that booted as far as it can without its root.
type Boot struct {
	ID        hostapi.MachineID
	Template  hostapi.TemplateName
	Disk      string // path of the image of the root disk, which is cloned
	Data      []BootDisk
	VCPUs     int
	MemoryMiB int
	DiskMiB   int // size of the root disk; the image's if that is larger
	User      string
	Workdir   string
	Env       map[string]string
	// WaitForRoot makes the guest wait for its root (guestapi.WaitForRootArgument), whatever Disk holds. Such a
	// machine can be captured and nothing else.
	WaitForRoot bool
	// From is the pre-mount snapshot to continue from: it was taken of a machine with WaitForRoot and has as many
	// processors, disks and as much memory as this one. "": the machine boots cold.
	From snapshot.Ref
	// Listed puts the machine into List, with Labels and Egress, and lets a later process take it over. Any other
	// is of no use to a later process: Recover destroys it.
	Listed bool
	Labels map[string]string
	Egress hostapi.Egress
	Group  string // as in CreateRequest
}

// BootDisk is a data disk of a machine that boots cold.
type BootDisk struct {
	snapshot.DataDisk        // MiB is ignored: it is that of the image
	Path              string // of the image to clone
}

// dataDisks returns the requested data disks with the sizes of their images, and the paths of all images.
func (req Boot) dataDisks() (all []snapshot.DataDisk, images []string, err error) {
	images = []string{req.Disk}
	for _, d := range req.Data {
		info, err := os.Stat(d.Path)
		if err != nil {
			return nil, nil, err
		}
		d.MiB = int(info.Size() / mib)
		all, images = append(all, d.DataDisk), append(images, d.Path)
	}
	return all, images, snapshot.CheckDataDisks(all)
}

// Boot makes a machine from disk images. When it fails nothing is left.
func (m *Manager) Boot(ctx context.Context, req Boot) (_ View, err error) {
	op := m.begin("boot")
	defer func() { err = op.end(ctx, err) }()
	l, err := m.bootLaunch(op, req)
	if err == nil {
		err = l.run(ctx, stepPublish)
	}
	if err != nil {
		return View{}, fmt.Errorf("boot machine %s: %w", req.ID, wrapNoSpace(err))
	}
	op.logPhases(l.mc, true)
	return l.mc.view(), nil
}

// bootLaunch returns the launch of a machine from disk images, with its pre-mount snapshot acquired.
func (m *Manager) bootLaunch(op *operation, req Boot) (*launch, error) {
	if err := m.deps.Network.CheckEgress(req.Egress); err != nil {
		return nil, err
	}
	info, err := os.Stat(req.Disk)
	if err != nil {
		return nil, err
	}
	data, images, err := req.dataDisks()
	if err != nil {
		return nil, err
	}
	plan, err := planStart(startRequest{
		op: opBoot, image: req.From, haveMiB: int((info.Size() + mib - 1) / mib), askMiB: req.DiskMiB,
		kernel: m.cfg.Kernel != nil,
	}, m.deps.Driver.Capabilities())
	if err != nil {
		return nil, err
	}
	l, places := m.newLaunch(op, plan), m.cfg.Places
	if req.From != "" {
		if l.snap, err = m.acquireSnapshot(op, req.From); err != nil {
			return nil, err
		}
		places = l.snap.Places()
	}
	if req.WaitForRoot {
		l.argument = guestapi.WaitForRootArgument
	}
	l.disks = images
	l.rec = record{
		ID: req.ID, State: creating, Template: req.Template, Base: req.From, VCPUs: req.VCPUs, MemoryMiB: req.MemoryMiB,
		DiskMiB: plan.diskMiB, Data: data, Places: places, Slot: -1,
		Hostname: string(req.ID), User: req.User, Workdir: req.Workdir,
		Env: req.Env, Ephemeral: !req.Listed, Labels: req.Labels, Egress: req.Egress, Group: req.Group, Generation: 1,
		BootMode: plan.mode, Created: time.Now().UTC(),
	}
	return l, nil
}
