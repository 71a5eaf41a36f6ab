package chunkstore

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// parallel calls do for each of all, in order and some concurrently, until one call fails or ctx ends. It
// returns an error if not all were done.
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
	return context.Cause(ctx) // running calls may have succeeded although ctx ended
}
