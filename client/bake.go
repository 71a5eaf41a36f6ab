package client

import (
	"context"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// bakePoll is the time between requests for the progress of a bake.
const bakePoll = 500 * time.Millisecond

// BakeAndWait begins to bake a template, or joins a bake that runs, and waits for its end.
//
// A template that is baked already is left as it is unless req.Force is set. BakeAndWait calls progress, if it is not
// nil, with every state of a bake that runs. The error of a failed bake has the last lines of its log.
func (t *Templates) BakeAndWait(
	ctx context.Context,
	name string,
	req api.BakeRequest,
	progress func(api.Bake),
) (api.Template, error) {
	out, err := t.Get(ctx, name)
	if err != nil || out.Baked && !req.Force {
		return out, err
	}
	if out, err = t.Bake(ctx, name, req); err != nil {
		return out, err
	}
	tick := time.NewTicker(bakePoll)
	defer tick.Stop()
	for out.Bake != nil && out.Bake.State == "running" {
		if progress != nil {
			progress(*out.Bake)
		}
		select {
		case <-ctx.Done():
			return out, transportError(ctx, context.Cause(ctx))
		case <-tick.C:
		}
		if out, err = t.Get(ctx, name); err != nil {
			return out, err
		}
	}
	if out.Bake != nil && out.Bake.State == "failed" {
		return out, api.Errorf(
			api.Internal,
			"bake of %s: %s\n%s",
			name,
			out.Bake.Error,
			strings.Join(out.Bake.Log, "\n"),
		)
	}
	return out, nil
}
