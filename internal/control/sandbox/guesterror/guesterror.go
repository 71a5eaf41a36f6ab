// Package guesterror says why a guest refused a request or lost its channel.
//
// A guest only knows that it is frozen, and a channel only that it has ended. Whether the sandbox was paused, deleted
// or restored meanwhile is known to who owns its state.
package guesterror

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// Explain returns the reason for an error of a guest. It is called for guestapi.ErrLost, and for a guestapi.ErrBusy
// that the guest sent, and returns the error itself if it knows no other reason.
type Explain func(ctx context.Context, err error) error

// Guest returns g with errors that say why.
func Guest(g guestapi.Guest, why Explain) guestapi.Guest { return &guest{g, why} }

type guest struct {
	guestapi.Guest
	why Explain
}

// explain returns the reason for err.
func (w Explain) explain(ctx context.Context, err error) error {
	var over *budget.Error
	switch {
	case err == nil || errors.As(err, &over):
		return err
	case errors.Is(err, guestapi.ErrLost), errors.Is(err, guestapi.ErrBusy):
		return w(ctx, err)
	}
	return err
}

func (g *guest) Start(ctx context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	p, err := g.Guest.Start(ctx, spec)
	return g.why.process(ctx, p, err)
}

func (g *guest) Attach(ctx context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	p, err := g.Guest.Attach(ctx, ref, from)
	return g.why.process(ctx, p, err)
}

func (w Explain) process(ctx context.Context, p guestapi.Process, err error) (guestapi.Process, error) {
	if err != nil {
		return nil, w.explain(ctx, err)
	}
	return &process{p, w}, nil
}

func (g *guest) Processes(ctx context.Context) ([]guestapi.ProcessInfo, error) {
	all, err := g.Guest.Processes(ctx)
	return all, g.why.explain(ctx, err)
}

func (g *guest) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	return g.why.explain(ctx, g.Guest.Signal(ctx, ref, signal, group))
}

func (g *guest) Stat(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	info, err := g.Guest.Stat(ctx, path, user)
	return info, g.why.explain(ctx, err)
}

func (g *guest) List(ctx context.Context, path, user string, depth int) ([]guestapi.FileInfo, error) {
	all, err := g.Guest.List(ctx, path, user, depth)
	return all, g.why.explain(ctx, err)
}

func (g *guest) Read(
	ctx context.Context,
	path, user string,
	offset, length int64,
) (guestapi.FileInfo, io.ReadCloser, error) {
	info, r, err := g.Guest.Read(ctx, path, user, offset, length)
	if err != nil {
		return info, nil, g.why.explain(ctx, err)
	}
	return info, &reader{r, ctx, g.why}, nil
}

func (g *guest) Write(
	ctx context.Context,
	path string,
	opt guestapi.WriteOptions,
	r io.Reader,
) (guestapi.FileInfo, error) {
	info, err := g.Guest.Write(ctx, path, opt, r)
	return info, g.why.explain(ctx, err)
}

func (g *guest) Move(ctx context.Context, from, to, user string) (guestapi.FileInfo, error) {
	info, err := g.Guest.Move(ctx, from, to, user)
	return info, g.why.explain(ctx, err)
}

func (g *guest) Remove(ctx context.Context, path, user string, recursive bool) error {
	return g.why.explain(ctx, g.Guest.Remove(ctx, path, user, recursive))
}

func (g *guest) MakeDir(ctx context.Context, path, user string) (guestapi.FileInfo, error) {
	info, err := g.Guest.MakeDir(ctx, path, user)
	return info, g.why.explain(ctx, err)
}

func (g *guest) Watch(ctx context.Context, path, user string, recursive bool) (guestapi.Watcher, error) {
	w, err := g.Guest.Watch(ctx, path, user, recursive)
	if err != nil {
		return nil, g.why.explain(ctx, err)
	}
	return &watcher{w, g.why}, nil
}

func (g *guest) Ports(ctx context.Context) ([]guestapi.Port, error) {
	all, err := g.Guest.Ports(ctx)
	return all, g.why.explain(ctx, err)
}

func (g *guest) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	c, err := g.Guest.DialPort(ctx, port)
	return c, g.why.explain(ctx, err)
}

type process struct {
	guestapi.Process
	why Explain
}

func (p *process) Next(ctx context.Context) (guestapi.Event, error) {
	e, err := p.Process.Next(ctx)
	return e, p.why.explain(ctx, err)
}

type watcher struct {
	guestapi.Watcher
	why Explain
}

func (w *watcher) Next(ctx context.Context) (guestapi.FileEvent, error) {
	e, err := w.Watcher.Next(ctx)
	return e, w.why.explain(ctx, err)
}

type reader struct {
	io.ReadCloser
	ctx context.Context //nolint:containedctx // of the call that opened it: Read has none
	why Explain
}

func (r *reader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	return n, r.why.explain(r.ctx, err)
}
