package repl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestexec"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// forkServerID is the id of the process that runs each cell of Once in a copy of itself. It is no context: no cell
// changes its state. A template can start it ahead of time, so that a cell finds modules imported.
const forkServerID = "once"

// forkServerKey is the turn of those who send a cell to the fork server of a sandbox. No context has such an id.
const forkServerKey = "/once"

// ForkServerSpec returns the process of the fork server, for templates that start it ahead.
func ForkServerSpec(dir, user string) guestapi.ProcessSpec {
	s := spec(Python, forkServerID, dir, user)
	s.Argv = append(s.Argv, forkServerID)
	return s
}

// Once runs a cell in a context of its own, which ends with the cell and everything that it started.
//
// dir and user are as in Create. The sandbox's fork server is started in the first dir and with the first user. A cell
// whose timeout passes, whose ctx ends or whose yield returns an error is killed.
func (r *Runner) Once(
	ctx context.Context,
	sandbox string,
	g guestapi.Guest,
	l Language,
	dir, user string,
	cell Cell,
	yield func(Event) error,
) (Outcome, error) {
	if l == Python {
		return r.fork(ctx, sandbox, g, dir, user, cell, yield)
	}
	c, err := Create(ctx, g, l, dir, user)
	if err != nil {
		return Outcome{}, err
	}
	defer func() {
		end, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), interruptTimeout, errCellTimeout)
		defer cancel()
		_ = Close(end, g, c) // the outcome of the cell is the result
	}()
	return r.Run(ctx, sandbox, g, c, cell, yield)
}

// fork runs a cell in a copy of the fork server.
func (r *Runner) fork(
	ctx context.Context,
	sandbox string,
	g guestapi.Guest,
	dir, user string,
	cell Cell,
	yield func(Event) error,
) (out Outcome, err error) {
	if err := cell.validate(); err != nil {
		return Outcome{}, err
	}
	cell.Owner = sandbox
	if cell.Defaults, err = r.Environment(ctx, sandbox, g); err != nil {
		return Outcome{}, err
	}
	proc, err := attachForkServer(ctx, g, dir, user)
	if err != nil {
		return Outcome{}, err
	}
	defer proc.Close()
	began := time.Now()
	protocol := &jsonProtocol{id: newCellID(), memory: budget.FromContext(ctx)}
	e := &execution{guest: g, proc: proc, protocol: protocol, yield: yield}
	e.end = func(ctx context.Context) (int, error) { return r.kill(ctx, sandbox, e, protocol.id) }
	if err := r.send(ctx, sandbox, proc, protocol.request(cell)); err != nil {
		return Outcome{}, err
	}
	if cell.OnStart != nil {
		cell.OnStart()
	}
	out, err = e.run(ctx, cell.Timeout)
	out.Took = time.Since(began)
	return out, err
}

// attachForkServer attaches to the fork server of a sandbox, which it starts if there is none.
func attachForkServer(ctx context.Context, g guestapi.Guest, dir, user string) (guestapi.Process, error) {
	ref := guestapi.ProcessRef{Tag: contextTag(Python, forkServerID)}
	proc, err := g.Attach(ctx, ref, guestexec.FromNow)
	if !errors.Is(err, guestapi.ErrNotFound) {
		return proc, err
	}
	proc, err = g.Start(ctx, ForkServerSpec(dir, user))
	if errors.Is(err, guestapi.ErrExists) { // by another request
		return g.Attach(ctx, ref, guestexec.FromNow)
	}
	if err != nil {
		return nil, fmt.Errorf("start a %s context: %w", Python, err)
	}
	return proc, nil
}

// send writes a whole line to the fork server. Lines of others do not get into it.
func (r *Runner) send(ctx context.Context, sandbox string, proc guestapi.Process, line []byte) error {
	done, err := r.acquireTurn(ctx, sandbox+forkServerKey)
	if err != nil {
		return err
	}
	defer done()
	if _, err := proc.Write(line); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrEnded, guestapi.ErrNotFound, err)
	}
	return nil
}

// kill ends a cell of the fork server.
func (r *Runner) kill(ctx context.Context, sandbox string, e *execution, id string) (int, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), interruptTimeout, errCellTimeout)
	defer cancel()
	line, _ := json.Marshal(map[string]any{"id": id, "kill": true}) // strings and booleans always encode
	if err := r.send(ctx, sandbox, e.proc, append(line, '\n')); err != nil {
		return 0, err
	}
	ended, failed, err := e.read(ctx)
	if ended || failed != nil {
		return e.code, failed
	}
	return 0, fmt.Errorf("%w: the cell could not be ended: %w", ErrEnded, err)
}
