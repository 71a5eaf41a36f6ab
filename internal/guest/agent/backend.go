// Package agent is the guest agent: a guestapi.Backend for the machine it runs in.
//
// It combines the processes, files, ports and identity of a machine and contains no logic of its own. It does not
// know the channel that requests come over. All methods are safe for concurrent use.
package agent

import (
	"context"
	"net"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/files"
	"github.com/pandastack/pandastack/internal/guest/passwd"
	"github.com/pandastack/pandastack/internal/guest/ports"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/system"
	"github.com/pandastack/pandastack/internal/guest/volume"
)

// Config configures a Backend.
type Config struct {
	System   system.System
	Workload system.Workload // stopped by Freeze
	Cgroup   int             // open directory of the cgroup that processes start in; 0: none
	Reaper   *process.Reaper
}

// Backend serves guest requests in the machine it runs in.
type Backend struct {
	guestapi.ProcessManager
	guestapi.FileSystem
	lifecycle
	processes *process.Table
	ports     ports.Ports
	volumes   *volume.Manager
}

// lifecycle is what system.Control serves.
type lifecycle interface {
	Freeze(ctx context.Context, sync bool) error
	Thaw(ctx context.Context) error
	Restore(ctx context.Context, id guestapi.Identity) error
}

var _ guestapi.Backend = (*Backend)(nil)

// New returns the backend of this machine.
func New(cfg Config) *Backend {
	processes := process.New(process.Config{Reaper: cfg.Reaper, Cgroup: cfg.Cgroup})
	volumes := volume.New(cfg.Reaper.Output)
	return &Backend{
		ProcessManager: processes,
		FileSystem:     &files.Files{Users: passwd.Database{}, DefaultUser: processes.DefaultUser},
		lifecycle:      system.New(cfg.System, cfg.Workload, processes, volumes),
		processes:      processes,
		ports:          ports.Ports{Proc: "/proc"},
		volumes:        volumes,
	}
}

// Close kills all processes that the backend started.
func (b *Backend) Close() { b.processes.Close() }

// Ports implements guestapi.Guest.
func (b *Backend) Ports(ctx context.Context) ([]guestapi.Port, error) { return b.ports.List(ctx) }

// DialPort implements guestapi.Guest.
func (b *Backend) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	return b.ports.Dial(ctx, port)
}

// DialSocket implements guestapi.Guest.
func (b *Backend) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	return b.ports.DialSocket(ctx, path)
}

// Stats implements guestapi.Guest.
func (b *Backend) Stats(context.Context) (guestapi.Stats, error) { return system.Stats("/proc", "/") }

// Volume implements guestapi.Backend.
func (b *Backend) Volume(_ context.Context, req guestapi.VolumeRequest) (guestapi.VolumeReport, error) {
	return b.volumes.Do(req)
}
