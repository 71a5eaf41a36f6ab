package chunkstore

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// parallel does something for each of all, some at once and in their order, until one of them fails or ctx ends. It
// answers why not all was done.
func parallel[T any](ctx context.Context, atOnce int, all []T, do func(ctx context.Context, n int, of T) error) error {
	g, within := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for n, of := range all {
		if within.Err() != nil {
			break
		}
		g.Go(func() error { return do(within, n, of) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return context.Cause(ctx) // those under way may have ended well all the same
}
