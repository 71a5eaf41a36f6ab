package netslot

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of whileInUse. A program starts within milliseconds, and a little later on a busy host.
const (
	inUseLimit = 2 * time.Second
	inUsePause = time.Millisecond
)

// whileInUse calls listen again as long as its address is in use, for a while.
//
// A socket that was closed stays bound while a program that is being started has a copy of its descriptor: between
// fork and exec it has all of this process.
func whileInUse[T any](ctx context.Context, listen func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, inUseLimit)
	defer cancel()
	for {
		made, err := listen()
		if !errors.Is(err, unix.EADDRINUSE) {
			return made, err
		}
		select {
		case <-ctx.Done():
			return made, err
		case <-time.After(inUsePause):
		}
	}
}
