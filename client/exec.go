package client

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// Exec runs a command to its end.
//
// A command that fails is no error: see ExitCode. A command that ran out of time is the error timeout, with its output
// in the details. When ctx ends, the command is killed.
func (s *Sandboxes) Exec(ctx context.Context, id api.SandboxID, req api.ExecRequest) (api.ExecResult, error) {
	var out api.ExecResult
	err := s.c.do(ctx, post(sandboxPath(id, "exec"), req), &out)
	return out, err
}

// Output receives what a command prints. Output for a nil function is dropped.
type Output struct {
	Started func(pid uint32)
	Stdout  func(text string)
	Stderr  func(text string)

	onEventID func(id string) // receives the id of each event, where a stream can be resumed
}

// ExecStream runs a command and passes its output on as it comes. When ctx ends, the command is killed.
func (s *Sandboxes) ExecStream(
	ctx context.Context,
	id api.SandboxID,
	req api.ExecRequest,
	out Output,
) (api.ExecExit, error) {
	rq := post(sandboxPath(id, "exec", "stream"), req)
	return s.follow(ctx, rq, out)
}

// AttachStream follows a process that was started before, from the beginning of its stored output.
//
// It resumes a connection that was cut where it was cut, so that no output is lost or repeated. When ctx ends, the
// process keeps running.
func (s *Sandboxes) AttachStream(ctx context.Context, id api.SandboxID, pid uint32, out Output) (api.ExecExit, error) {
	last := ""
	out.onEventID = func(id string) { last = id }
	for try := 1; ; try++ {
		rq, before := get(sandboxPath(id, "processes", itoa(pid), "stream")), last
		if before != "" {
			rq.header = map[string]string{"Last-Event-ID": before}
		}
		exit, err := s.follow(ctx, rq, out)
		if err == nil || !isRetryable(err) || try >= s.c.tries && last == before {
			return exit, err
		}
		if last != before {
			try = 0 // there was progress
			continue
		}
		if err := backoff(ctx, try); err != nil {
			return api.ExecExit{}, err
		}
	}
}

func (s *Sandboxes) follow(ctx context.Context, rq call, out Output) (api.ExecExit, error) {
	var exit *api.ExecExit
	err := s.c.events(ctx, rq, func(e event) (err error) {
		defer func() {
			if err == nil && e.id != "" && out.onEventID != nil {
				out.onEventID(e.id)
			}
		}()
		switch e.name {
		case "start":
			var v api.ExecStarted
			if err := e.decode(&v); err != nil {
				return err
			}
			if out.Started != nil {
				out.Started(v.PID)
			}
		case "stdout":
			return e.chunk(out.Stdout)
		case "stderr":
			return e.chunk(out.Stderr)
		case "exit":
			exit = &api.ExecExit{}
			return e.decode(exit)
		}
		return nil
	})
	switch {
	case err != nil:
		return api.ExecExit{}, err
	case exit == nil:
		return api.ExecExit{}, api.Errorf(api.Unavailable, "the stream ended before the command did")
	}
	return *exit, nil
}

// Processes returns the processes that run or ended lately.
func (s *Sandboxes) Processes(ctx context.Context, id api.SandboxID) ([]api.Process, error) {
	var out []api.Process
	err := s.c.do(ctx, get(sandboxPath(id, "processes")), &out)
	return out, err
}

// Signal sends a signal to a process.
func (s *Sandboxes) Signal(ctx context.Context, id api.SandboxID, pid uint32, req api.SignalRequest) error {
	return s.c.do(ctx, post(sandboxPath(id, "processes", itoa(pid), "signal"), req), nil)
}
