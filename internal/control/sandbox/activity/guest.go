package activity

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Budgets bound what is open to guests at once, and what this process buffers for it. Nil pools bound nothing.
type Budgets struct {
	Streams *budget.Pool // requests, processes, readers, watchers and connections, by workspace and sandbox
	Memory  *budget.Pool // bytes, by workspace and sandbox
}

// Guest wraps a guest so that what is done through it counts as use, and against the budgets.
//
// Open processes, readers, watchers and connections keep the sandbox in use until they are closed. The tracker records
// how processes end. What exceeds a budget is guestapi.ErrBusy.
func (b *Tracker) Guest(workspace, id string, g guestapi.Guest, limits Budgets) guestapi.Guest {
	return &guest{Guest: g, b: b, workspace: workspace, id: id, limits: limits}
}

// guest counts requests as use, and records how processes end.
type guest struct {
	guestapi.Guest
	b             *Tracker
	workspace, id string
	limits        Budgets
}

// hold keeps the sandbox in use, and a stream open, until the returned function is called. What is buffered is paid by
// the account of ctx if there is one.
func (g *guest) hold(ctx context.Context) (context.Context, func(), error) {
	if budget.FromContext(ctx) != nil {
		release, err := g.holdStream()
		return ctx, release, err
	}
	return g.holdOwn(ctx)
}

// holdOwn is hold for what may outlive the call that opened it: what is buffered is paid by an account of its own.
func (g *guest) holdOwn(ctx context.Context) (context.Context, func(), error) {
	release, err := g.holdStream()
	if err != nil {
		return ctx, nil, err
	}
	memory := g.limits.Memory.Open(g.workspace, g.id)
	return budget.NewContext(ctx, memory), func() { memory.Close(); release() }, nil
}

func (g *guest) holdStream() (func(), error) {
	stream := g.limits.Streams.Open(g.workspace, g.id)
	if err := stream.Take(1); err != nil {
		stream.Close()
		return nil, fmt.Errorf("%w: %w", guestapi.ErrBusy, err)
	}
	idle := g.b.Hold(g.id)
	return func() { stream.Close(); idle() }, nil
}

func (g *guest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	ctx, release, err := g.holdOwn(ctx)
	if err != nil {
		return nil, err
	}
	p, err := g.Guest.Start(ctx, spec)
	if err != nil {
		release()
		return nil, err
	}
	return &process{Process: p, release: release, end: g.b.record.start(g.id, p.PID(), spec)}, nil
}

func (g *guest) Attach(ctx context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	ctx, release, err := g.holdOwn(ctx)
	if err != nil {
		return nil, err
	}
	p, err := g.Guest.Attach(ctx, ref, from)
	if err != nil {
		release()
		return nil, err
	}
	return &process{Process: p, release: release, end: g.b.record.find(g.id, p.PID())}, nil
}

func (g *guest) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return g.Guest.Processes(ctx)
}

func (g *guest) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	return g.Guest.Signal(ctx, ref, signal, group)
}

func (g *guest) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	defer release()
	return g.Guest.Stat(ctx, path, user)
}

func (g *guest) List(ctx context.Context, path, user string, depth int) ([]guestapi.FileInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return g.Guest.List(ctx, path, user, depth)
}

func (g *guest) Read(
	ctx context.Context,
	path, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	ctx, release, err := g.holdOwn(ctx)
	if err != nil {
		return guestapi.FileInfo{}, nil, err
	}
	info, r, err := g.Guest.Read(ctx, path, user, offset, length)
	if err != nil {
		release()
		return info, nil, err
	}
	return info, &reader{r, release}, nil
}

func (g *guest) Write(
	ctx context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	defer release()
	return g.Guest.Write(ctx, path, opt, r)
}

func (g *guest) Move(ctx context.Context, from, to, user string) (guestapi.FileInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	defer release()
	return g.Guest.Move(ctx, from, to, user)
}

func (g *guest) Remove(ctx context.Context, path, user string, recursive bool) error {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	return g.Guest.Remove(ctx, path, user, recursive)
}

func (g *guest) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return guestapi.FileInfo{}, err
	}
	defer release()
	return g.Guest.MakeDir(ctx, path, user)
}

func (g *guest) Watch(ctx context.Context, path, user string, recursive bool) (guestapi.Watcher, error) {
	ctx, release, err := g.holdOwn(ctx)
	if err != nil {
		return nil, err
	}
	w, err := g.Guest.Watch(ctx, path, user, recursive)
	if err != nil {
		release()
		return nil, err
	}
	return &watcher{w, release}, nil
}

func (g *guest) Ports(ctx context.Context) ([]guestapi.Port, error) {
	ctx, release, err := g.hold(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return g.Guest.Ports(ctx)
}

func (g *guest) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	return g.dial(ctx, func(ctx context.Context) (net.Conn, error) { return g.Guest.DialPort(ctx, port) })
}

func (g *guest) DialSocket(ctx context.Context, path string) (net.Conn, error) {
	return g.dial(ctx, func(ctx context.Context) (net.Conn, error) { return g.Guest.DialSocket(ctx, path) })
}

func (g *guest) dial(ctx context.Context, to func(context.Context) (net.Conn, error)) (net.Conn, error) {
	ctx, release, err := g.holdOwn(ctx)
	if err != nil {
		return nil, err
	}
	c, err := to(ctx)
	if err != nil {
		release()
		return nil, err
	}
	if half, ok := c.(halfCloser); ok {
		return &halfConn{conn{c, release}, half}, nil
	}
	return &conn{c, release}, nil
}

// process is a process stream that keeps its sandbox in use.
type process struct {
	guestapi.Process
	release func()
	end     *processRecord // nil: not recorded
}

func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	e, err := p.Process.Next(ctx)
	if err == nil {
		p.end.observe(e)
	}
	return e, err
}

func (p *process) Close() error {
	p.release()
	return p.Process.Close()
}

type reader struct {
	io.ReadCloser
	release func()
}

func (r *reader) Close() error {
	r.release()
	return r.ReadCloser.Close()
}

type watcher struct {
	guestapi.Watcher
	release func()
}

func (w *watcher) Close() error {
	w.release()
	return w.Watcher.Close()
}

type conn struct {
	net.Conn
	release func()
}

func (c *conn) Close() error {
	c.release()
	return c.Conn.Close()
}

// halfCloser is a connection whose directions can be closed one by one.
type halfCloser interface{ CloseWrite() error }

type halfConn struct {
	conn
	half halfCloser
}

// CloseWrite closes the direction to the guest.
func (c *halfConn) CloseWrite() error { return c.half.CloseWrite() }
