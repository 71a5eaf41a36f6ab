package client

import (
	"context"

	"github.com/pandastack/pandastack/api"
)

// RunCell runs code in a context that keeps its variables, and waits for its end.
//
// The context that a template has for Python is named "default". A cell that ran out of time is the error timeout; its
// context stays.
func (s *Sandboxes) RunCell(
	ctx context.Context,
	id api.SandboxID,
	session string,
	cell api.ReplCell,
) (api.ReplResult, error) {
	var out api.ReplResult
	err := s.c.do(ctx, post(sandboxPath(id, "repl", "sessions", session, "run"), cell), &out)
	return out, err
}

// RunOnce runs code in a context of its own, which ends with it.
func (s *Sandboxes) RunOnce(ctx context.Context, id api.SandboxID, req api.ReplOnce) (api.ReplResult, error) {
	var out api.ReplResult
	err := s.c.do(ctx, post(sandboxPath(id, "repl"), req), &out)
	return out, err
}
