package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/guest/server"
)

// willing is a backend on which every Restore succeeds.
type willing struct{ guestapi.Backend }

func (willing) Restore(context.Context, guestapi.Identity) error { return nil }

// TestServeSockets checks that the newest host is served, whatever happened to earlier ones.
func TestServeSockets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conns := make(chan io.ReadWriteCloser)
	over := errors.New("no more")
	failed := make(chan error, 1)
	go func() {
		failed <- serveSockets(ctx, func() (io.ReadWriteCloser, error) {
			if c, ok := <-conns; ok {
				return c, nil
			}
			return nil, over
		}, server.New(willing{}))
	}()
	var last *guestlink.Link
	for generation := range uint64(3) {
		ours, theirs := net.Pipe()
		conns <- theirs
		link, err := guestlink.Open(ctx, ours, guestlink.Options{
			Generation: generation + 1, Identity: &guestapi.Identity{Entropy: bytes.Repeat([]byte{1}, 32)},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer link.Close()
		if err := link.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		if last != nil {
			select {
			case <-last.Done():
			case <-ctx.Done():
				t.Fatal("the earlier host is still served")
			}
		}
		last = link
	}
	close(conns)
	if err := <-failed; !errors.Is(err, over) {
		t.Errorf("serveSockets: got error %v", err)
	}
}
