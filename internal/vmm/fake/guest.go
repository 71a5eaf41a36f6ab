package fake

import (
	"context"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

var _ guestapi.Backend = (*guestState)(nil)

// Ports implements guestapi.Guest.
func (w *guestState) Ports(ctx context.Context) ([]guestapi.Port, error) {
	return nil, w.do(ctx, func() error { return nil })
}

// DialPort returns an error: programs of this guest do not listen.
func (w *guestState) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	return nil, w.do(ctx, func() error { return fmt.Errorf("port %d: %w", port, guestapi.ErrRefused) })
}

// DialSocket returns an error, as DialPort does.
func (w *guestState) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	return nil, w.do(ctx, func() error { return fmt.Errorf("socket %s: %w", path, guestapi.ErrRefused) })
}

// Freeze implements guestapi.Guest.
func (w *guestState) Freeze(ctx context.Context, _ bool) error {
	return w.do(ctx, func() error {
		w.frozen = true
		return nil
	})
}

// Thaw implements guestapi.Guest.
func (w *guestState) Thaw(ctx context.Context) error {
	return w.do(ctx, func() error {
		w.frozen = false
		w.cond.Broadcast()
		return nil
	})
}

// Stats implements guestapi.Guest.
func (w *guestState) Stats(ctx context.Context) (out guestapi.Stats, _ error) {
	err := w.do(ctx, func() error {
		used := int64(0)
		for _, f := range w.Files {
			used += int64(len(f.Data))
		}
		out = guestapi.Stats{
			MemTotal: 256 << 20, MemAvailable: 200 << 20, DiskTotal: 1 << 30, DiskUsed: used, CPUs: 1,
			Uptime: w.Booted + time.Since(w.started), Processes: len(w.Procs), Time: w.now(),
		}
		return nil
	})
	return out, err
}

// Restore implements guestapi.Guest.
func (w *guestState) Restore(ctx context.Context, id guestapi.Identity) error {
	return w.do(ctx, func() error {
		if len(id.Entropy) != 0 && len(id.Entropy) != 64 {
			return fmt.Errorf("%w: entropy of %d bytes", guestapi.ErrInvalid, len(id.Entropy))
		}
		w.Hostname, w.MachineID, w.User, w.Network = id.Hostname, id.MachineID, id.User, id.Network
		if !id.Time.IsZero() {
			w.ClockOffset = time.Until(id.Time)
		}
		w.Env = map[string]string{"PATH": "/usr/bin:/bin"}
		maps.Copy(w.Env, id.Env)
		if err := w.put("/etc/hostname", []byte(id.Hostname+"\n"), 0o644, "root"); err != nil {
			return err
		}
		if err := w.put("/etc/machine-id", []byte(id.MachineID+"\n"), 0o444, "root"); err != nil {
			return err
		}
		for _, v := range id.Volumes {
			w.mountVolume(v)
		}
		for p, data := range id.Files {
			if err := w.put(p, data, 0o600, "root"); err != nil {
				return err
			}
		}
		w.frozen = false
		w.cond.Broadcast()
		return nil
	})
}

// Volume implements guestapi.Backend. The guest only remembers what is mounted.
func (w *guestState) Volume(ctx context.Context, req guestapi.VolumeRequest) (out guestapi.VolumeReport, _ error) {
	err := w.do(ctx, func() error {
		if req.Action == guestapi.VolumeMountAt {
			w.mountVolume(req.Volume)
		}
		one, ok := w.Volumes[req.Volume.Disk]
		if !ok {
			return fmt.Errorf("%w: no volume is mounted from disk %d", guestapi.ErrNotFound, req.Volume.Disk)
		}
		if one.Check {
			out.Check = guestapi.CheckClean
		}
		if req.Action == guestapi.VolumeUnmount {
			delete(w.Volumes, req.Volume.Disk)
			out.Clean = true
		}
		return nil
	})
	return out, err
}

func (w *guestState) mountVolume(v guestapi.VolumeMount) {
	if w.Volumes == nil {
		w.Volumes = map[int]guestapi.VolumeMount{}
	}
	w.Volumes[v.Disk] = v
}
