package hosttest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// Usage implements hostapi.Host.
func (h *Host) Usage(ctx context.Context, id hostapi.MachineID) (hostapi.Usage, error) {
	var u hostapi.Usage
	err := h.withMachine(ctx, "usage", id, func(m *machine) error {
		if m.PID == 0 {
			return wrongState(m)
		}
		u = hostapi.Usage{PID: m.PID, Uptime: time.Since(m.Created), CPU: time.Second, CPUPercent: 1.5,
			RSSBytes: 40 << 20, PSSBytes: 30 << 20, VSZBytes: 400 << 20, Threads: 3}
		return nil
	})
	return u, err
}

// Console implements hostapi.Host.
func (h *Host) Console(ctx context.Context, id hostapi.MachineID) ([]byte, error) {
	var text []byte
	err := h.withMachine(ctx, "console", id, func(m *machine) error {
		text = consoleText(m)
		return nil
	})
	return text, err
}

func consoleText(m *machine) []byte { return fmt.Appendf(nil, "console of %s\nlogin: \n", m.ID) }

// TakeSnapshot implements hostapi.Host.
func (h *Host) TakeSnapshot(
	ctx context.Context,
	id hostapi.MachineID,
	snap hostapi.SnapshotID,
	labels map[string]string,
) (hostapi.Snapshot, error) {
	var taken hostapi.Snapshot
	err := h.withMachine(ctx, "takesnapshot", id, func(m *machine) error {
		if m.State != hostapi.Running && m.State != hostapi.Paused {
			return wrongState(m)
		}
		if _, ok := h.snapshots[snap]; ok {
			return fmt.Errorf("snapshot %s: %w", snap, hostapi.ErrExists)
		}
		m.Pause = 7 * time.Millisecond
		taken = hostapi.Snapshot{
			ID:        snap,
			Host:      h.id,
			Machine:   id,
			Template:  m.Template,
			VCPUs:     m.VCPUs,
			MemoryMiB: m.MemoryMiB,
			DiskMiB:   m.DiskMiB,
			Bytes:     64 << 20,
			Created:   time.Now(),
			Labels:    maps.Clone(labels),
		}
		in := m.state.copy("", m.state.env)
		h.snapshots[snap] = &snapshot{Snapshot: taken, disks: m.Disks, volumes: m.Volumes, readOnly: in.readOnly,
			files: in.files, env: in.env, servers: m.guest.servers()}
		return nil
	})
	return taken, err
}

// GetSnapshot implements hostapi.Host.
func (h *Host) GetSnapshot(ctx context.Context, id hostapi.SnapshotID) (hostapi.Snapshot, error) {
	var got hostapi.Snapshot
	err := h.runOp(ctx, "getsnapshot", string(id), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		s, ok := h.snapshots[id]
		if !ok {
			return fmt.Errorf("snapshot %s: %w", id, hostapi.ErrNotFound)
		}
		got = s.Snapshot
		return nil
	})
	return got, err
}

// Snapshots implements hostapi.Host.
func (h *Host) Snapshots(ctx context.Context) ([]hostapi.Snapshot, error) {
	all := []hostapi.Snapshot{}
	err := h.runOp(ctx, "snapshots", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, id := range slices.Sorted(maps.Keys(h.snapshots)) {
			all = append(all, h.snapshots[id].Snapshot)
		}
		return nil
	})
	return all, err
}

// DeleteSnapshot implements hostapi.Host.
func (h *Host) DeleteSnapshot(ctx context.Context, id hostapi.SnapshotID) error {
	return h.runOp(ctx, "deletesnapshot", string(id), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.snapshots[id]; !ok {
			return fmt.Errorf("snapshot %s: %w", id, hostapi.ErrNotFound)
		}
		delete(h.snapshots, id)
		return nil
	})
}

// Templates implements hostapi.Host.
func (h *Host) Templates(ctx context.Context) ([]hostapi.Template, error) {
	all := []hostapi.Template{}
	err := h.runOp(ctx, "templates", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(h.templates)) {
			all = append(all, h.templates[name])
		}
		return nil
	})
	return all, err
}

// StartBake implements hostapi.Host; the bake is done at once.
func (h *Host) StartBake(ctx context.Context, name hostapi.TemplateName, force bool) error {
	return h.runOp(ctx, "startbake", string(name), func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		t, ok := h.templates[name]
		if !ok {
			return fmt.Errorf("template %s: %w", name, hostapi.ErrNotFound)
		}
		if t.Baked && !force {
			return nil
		}
		now := time.Now()
		t.Baked, t.BakedAt = true, now
		t.Bake = &hostapi.Bake{
			State:   "done",
			Step:    "capture",
			Percent: 100,
			Started: now,
			Ended:   now,
			Log:     []string{"baked"},
		}
		h.templates[name] = t
		return nil
	})
}

// Capacity implements hostapi.Host.
func (h *Host) Capacity(ctx context.Context) (hostapi.Capacity, error) {
	var c hostapi.Capacity
	err := h.runOp(ctx, "capacity", "", func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		n := h.running()
		c = hostapi.Capacity{
			Host:          h.id,
			Driver:        "simulated",
			Version:       "1",
			Format:        h.format,
			Accelerator:   "none",
			Isolation:     "none",
			VCPUs:         2,
			MemoryMiB:     256 * h.maxRunning,
			MemoryFreeMiB: 256 * (h.maxRunning - n),
			MemoryShort:   h.memoryShort,
			DiskMiB:       100 << 10,
			DiskFreeMiB:   90 << 10,
			Machines:      len(h.machines),
			Running:       n,
			Limits:        h.limits,
		}
		for _, m := range h.machines {
			if m.PauseReason == hostapi.PausedNoSpace {
				c.WaitingForSpace++
			}
		}
		return nil
	})
	return c, err
}

// Events implements hostapi.Host.
func (h *Host) Events(ctx context.Context) (hostapi.Stream[hostapi.Event], error) {
	if err := h.runOp(ctx, "events", "", func() error { return nil }); err != nil {
		return nil, err
	}
	ch := make(chan hostapi.Event, 1024)
	h.mu.Lock()
	id := h.nextSubscriber
	h.nextSubscriber++
	h.subscribers[id] = ch
	h.mu.Unlock()
	return hostapi.NewStream(ctx, func(ctx context.Context, send func(hostapi.Event) error) error {
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.subscribers, id)
		}()
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case e := <-ch:
				if err := send(e); err != nil {
					return err
				}
			}
		}
	}), nil
}
