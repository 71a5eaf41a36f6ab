package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/guestpipe"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// Create implements hostapi.Host. A template that is not baked is baked first.
func (h *Host) Create(ctx context.Context, req hostapi.Create) (hostapi.Machine, error) {
	if exactlyOne(req.Template != "", req.Snapshot != "", req.Image != "") != nil {
		return hostapi.Machine{}, fmt.Errorf(
			"create machine %s: name a template, a snapshot or an image, and one only: %w",
			req.ID,
			hostapi.ErrInvalid,
		)
	}
	if req.Image != "" {
		return h.bootImage(ctx, req)
	}
	if req.Snapshot != "" {
		ref, err := snapshotRef(req.Snapshot)
		if err != nil {
			return hostapi.Machine{}, err
		}
		return h.owned(h.machines.Create(ctx, createRequest(req), ref, ""))
	}
	// A new bake may replace the snapshot that was just found, but hardly twice during one create.
	for again := 0; ; again++ {
		snap, cold, err := h.baker.Ensure(ctx, req.Template)
		if err != nil {
			return hostapi.Machine{}, err
		}
		mode := hostapi.BootSnapshot
		if cold {
			mode = hostapi.BootCold
		}
		mc, err := h.machines.Create(ctx, createRequest(req), snap.Ref, mode)
		if !errors.Is(err, snapshot.ErrNotFound) || again == 1 {
			return h.owned(mc, err)
		}
	}
}

// Fork implements hostapi.Host.
func (h *Host) Fork(ctx context.Context, req hostapi.Fork) ([]hostapi.ForkResult, error) {
	all, err := h.machines.Fork(ctx, forkRequest(req))
	if err != nil {
		return nil, err
	}
	out := make([]hostapi.ForkResult, len(all))
	for i, r := range all {
		if out[i].Failure = hostapi.EncodeError(r.Err); r.Err == nil {
			out[i].Machine = machineOf(h.id, r.Machine)
		}
	}
	return out, nil
}

// Get implements hostapi.Host.
func (h *Host) Get(_ context.Context, id hostapi.MachineID) (hostapi.Machine, error) {
	if err := h.recovered(); err != nil {
		return hostapi.Machine{}, err
	}
	mc, err := h.machines.Get(id)
	if errors.Is(err, hostapi.ErrNotFound) && h.leftAlone(id) {
		err = fmt.Errorf("machine %s: its record cannot be used, its files are kept: %w", id, hostapi.ErrUnavailable)
	}
	return h.owned(mc, err)
}

// leftAlone reports whether the files of a machine exist though its record could not be used: another version
// of this program may understand it.
func (h *Host) leftAlone(id hostapi.MachineID) bool {
	name := string(id)
	if name == "" || strings.Trim(name, idLetters) != "" {
		return false
	}
	_, err := os.Stat(filepath.Join(h.cfg.DataDir, machinesDir, name))
	return err == nil
}

// recovered returns ErrUnavailable before Open has recovered what an earlier process left.
func (h *Host) recovered() error {
	if h.machines == nil {
		return fmt.Errorf("the host agent has not recovered its machines yet: %w", hostapi.ErrUnavailable)
	}
	return nil
}

// owned returns the result of the machine manager as the contract describes it.
func (h *Host) owned(v machine.View, err error) (hostapi.Machine, error) {
	if err != nil {
		return hostapi.Machine{}, err
	}
	return machineOf(h.id, v), nil
}

// List implements hostapi.Host. It leaves out machines of bakes.
func (h *Host) List(context.Context) ([]hostapi.Machine, error) {
	if err := h.recovered(); err != nil {
		return nil, err
	}
	list := h.machines.List()
	out := make([]hostapi.Machine, len(list))
	for i, v := range list {
		out[i] = machineOf(h.id, v)
	}
	return out, nil
}

// Pause implements hostapi.Host.
func (h *Host) Pause(ctx context.Context, id hostapi.MachineID) error {
	return h.machines.Pause(ctx, id)
}

// Resume implements hostapi.Host.
func (h *Host) Resume(ctx context.Context, id hostapi.MachineID) error {
	return h.machines.Resume(ctx, id)
}

// Hibernate implements hostapi.Host.
func (h *Host) Hibernate(ctx context.Context, id hostapi.MachineID) error {
	return h.machines.Hibernate(ctx, id)
}

// Stop implements hostapi.Host.
func (h *Host) Stop(ctx context.Context, id hostapi.MachineID) error {
	return h.machines.Stop(ctx, id)
}

// Wake implements hostapi.Host.
func (h *Host) Wake(ctx context.Context, id hostapi.MachineID) (hostapi.Machine, error) {
	return h.owned(h.machines.Wake(ctx, id))
}

// SetPersistent implements hostapi.Host.
func (h *Host) SetPersistent(ctx context.Context, id hostapi.MachineID, keep bool) error {
	return h.machines.SetPersistent(ctx, id, keep)
}

// SetEgress implements hostapi.Host.
func (h *Host) SetEgress(ctx context.Context, id hostapi.MachineID, policy hostapi.Egress) error {
	return h.machines.SetEgress(ctx, id, policy)
}

// SetGroupBounds implements hostapi.Host.
func (h *Host) SetGroupBounds(_ context.Context, bounds hostapi.GroupBounds) error {
	h.machines.SetGroupBounds(bounds)
	return nil
}

// Destroy implements hostapi.Host.
func (h *Host) Destroy(ctx context.Context, id hostapi.MachineID, cause string) error {
	return h.machines.Destroy(ctx, id, cause)
}

// DialGuest implements hostapi.Host.
func (h *Host) DialGuest(ctx context.Context, id hostapi.MachineID) (hostapi.GuestConn, error) {
	if err := h.recovered(); err != nil {
		return hostapi.GuestConn{}, err
	}
	g, err := h.machines.Guest(ctx, id)
	if err != nil {
		return hostapi.GuestConn{}, err
	}
	mc, err := h.machines.Get(id)
	if err != nil {
		return hostapi.GuestConn{}, err
	}
	return guestpipe.New(ctx, g, mc.Generation), nil
}

// Usage implements hostapi.Host.
func (h *Host) Usage(ctx context.Context, id hostapi.MachineID) (hostapi.Usage, error) {
	u, err := h.machines.Usage(ctx, id)
	return hostapi.Usage(u), err
}

// Console implements hostapi.Host.
func (h *Host) Console(ctx context.Context, id hostapi.MachineID) ([]byte, error) {
	return h.machines.Console(ctx, id)
}

// Templates implements hostapi.Host.
func (h *Host) Templates(ctx context.Context) ([]hostapi.Template, error) {
	if err := h.recovered(); err != nil {
		return nil, err
	}
	list, err := h.baker.Templates(ctx)
	for i := range list {
		list[i].Host = h.id
	}
	return list, err
}

// StartBake implements hostapi.Host.
func (h *Host) StartBake(ctx context.Context, name hostapi.TemplateName, force bool) error {
	return h.baker.Start(ctx, name, force)
}

// Bake bakes a template, unless it is baked, and waits for the end.
func (h *Host) Bake(ctx context.Context, name hostapi.TemplateName) error {
	_, _, err := h.baker.Ensure(ctx, name)
	return err
}
