package client

import (
	"context"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

// bakePoll is how often a bake is asked about.
const bakePoll = 500 * time.Millisecond

// BakeAndWait begins to bake a template, or joins a bake under way, and follows it to its end. A template
// that is baked is left alone unless req.Force. tell is called for every look at a bake that runs; it may
// be nil. A bake that failed is an error that carries the last lines of its log.
func (t *Templates) BakeAndWait(
	ctx context.Context,
	name string,
	req api.BakeRequest,
	tell func(api.Bake),
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
		if tell != nil {
			tell(*out.Bake)
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
