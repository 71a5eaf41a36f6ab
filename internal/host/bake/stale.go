package bake

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// rebakeStale bakes the templates again, one after the other, that were baked for another platform or from other
// sources: with another guest agent, kernel or monitor. Creates that come first bake what they need themselves.
func (b *Baker) rebakeStale(ctx context.Context) {
	platform, err := b.cfg.Platform(ctx)
	if err != nil {
		b.cfg.Log.Warn("stale templates are not baked again", "err", err)
		return
	}
	all := append(slices.Collect(maps.Values(b.recipes)), b.allPublished()...)
	slices.SortFunc(all, func(a, b Recipe) int { return strings.Compare(string(a.Name), string(b.Name)) })
	for _, r := range all {
		_, baked := b.newest(r, "")
		_, current := b.newest(r, r.generation(platform))
		if !baked || current || ctx.Err() != nil {
			continue
		}
		b.cfg.Log.Info("template is stale: baking it again in the background", "template", r.Name,
			"why", "the guest agent, the kernel, the monitor or the recipe changed")
		began := time.Now()
		j, err := b.start(ctx, r.Name, false)
		if err == nil && j != nil {
			err = j.wait(ctx)
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			b.cfg.Log.Warn("stale template not baked again: the next create bakes it", "template", r.Name, "err", err)
		default:
			b.cfg.Log.Info("stale template baked again", "template", r.Name, "took", time.Since(began))
		}
	}
}
