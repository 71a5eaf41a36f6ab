// Package agent is the guest agent: a guestapi.Backend for the machine it runs in.
//
// It combines the processes, files, ports and identity of a machine and contains no logic of its own. It does not
// know the channel that requests come over. All methods are safe for concurrent use.
package agent

import (
	"context"
	"io"
	"net"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/files"
	"github.com/pandastack/pandastack/internal/guest/passwd"
	"github.com/pandastack/pandastack/internal/guest/ports"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/guest/system"
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
	processes *process.Table
	files     files.Files
	ports     ports.Ports
	control   *system.Control
}

var _ guestapi.Backend = (*Backend)(nil)

// New returns the backend of this machine.
func New(cfg Config) *Backend {
	b := &Backend{ports: ports.Ports{Proc: "/proc"}}
	b.processes = process.New(process.Config{Reaper: cfg.Reaper, Cgroup: cfg.Cgroup})
	b.files = files.Files{Users: passwd.Database{}, DefaultUser: b.processes.DefaultUser}
	b.control = system.New(cfg.System, cfg.Workload, b.processes)
	return b
}

// Close kills all processes that the backend started.
func (b *Backend) Close() { b.processes.Close() }

// Start implements guestapi.Guest.
func (b *Backend) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	return b.processes.Start(ctx, spec)
}

// Attach implements guestapi.Guest.
func (b *Backend) Attach(
	ctx context.Context,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
) (guestapi.Process, error) {
	return b.processes.Attach(ctx, ref, from)
}

// Processes implements guestapi.Guest.
func (b *Backend) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	return b.processes.Processes(ctx)
}

// Signal implements guestapi.Guest.
func (b *Backend) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	return b.processes.Signal(ctx, ref, signal, group)
}

// Stat implements guestapi.Guest.
func (b *Backend) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return b.files.Stat(ctx, path, user)
}

// List implements guestapi.Guest.
func (b *Backend) List(ctx context.Context, path, user string, depth int) ([]guestapi.FileInfo, error) {
	return b.files.List(ctx, path, user, depth)
}

// Read implements guestapi.Guest.
func (b *Backend) Read(
	ctx context.Context,
	path, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	return b.files.Read(ctx, path, user, offset, length)
}

// Write implements guestapi.Guest.
func (b *Backend) Write(
	ctx context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	return b.files.Write(ctx, path, opt, r)
}

// Move implements guestapi.Guest.
func (b *Backend) Move(ctx context.Context, from, to, user string) (guestapi.FileInfo, error) {
	return b.files.Move(ctx, from, to, user)
}

// Remove implements guestapi.Guest.
func (b *Backend) Remove(ctx context.Context, path, user string, recursive bool) error {
	return b.files.Remove(ctx, path, user, recursive)
}

// MakeDir implements guestapi.Guest.
func (b *Backend) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	return b.files.MakeDir(ctx, path, user)
}

// Watch implements guestapi.Guest.
func (b *Backend) Watch(ctx context.Context, path, user string, recursive bool) (guestapi.Watcher, error) {
	return b.files.Watch(ctx, path, user, recursive)
}

// Ports implements guestapi.Guest.
func (b *Backend) Ports(ctx context.Context) ([]guestapi.Port, error) { return b.ports.List(ctx) }

// DialPort implements guestapi.Guest.
func (b *Backend) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	return b.ports.Dial(ctx, port)
}

// Freeze implements guestapi.Guest.
func (b *Backend) Freeze(ctx context.Context, sync bool) error { return b.control.Freeze(ctx, sync) }

// Thaw implements guestapi.Guest.
func (b *Backend) Thaw(ctx context.Context) error { return b.control.Thaw(ctx) }

// Restore implements guestapi.Backend.
func (b *Backend) Restore(ctx context.Context, id guestapi.Identity) error {
	return b.control.Restore(ctx, id)
}

// Stats implements guestapi.Guest.
func (b *Backend) Stats(context.Context) (guestapi.Stats, error) { return system.Stats("/proc", "/") }
