package fake

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/internal/guest/server"
)

// Guest is a guest without a machine around it, for the fakes of monitors. It begins stopped.
type Guest struct {
	state  *guestState
	server *server.Server
}

// NewGuest answers a guest that was just booted.
func NewGuest() *Guest { return newGuest(newGuestState()) }

// LoadGuest answers the guest that Save wrote.
func LoadGuest(data []byte) (*Guest, error) {
	w, err := decodeGuestState(data)
	if err != nil {
		return nil, err
	}
	return newGuest(w), nil
}

func newGuest(w *guestState) *Guest {
	w.setPaused(true)
	w.run()
	return &Guest{w, server.New(w)}
}

// Pause stops its processors, or lets them go on.
func (g *Guest) Pause(v bool) { g.state.setPaused(v) }

// Save answers all of it, for LoadGuest.
func (g *Guest) Save() ([]byte, error) { return g.state.copy().encode() }

// Serve answers one host until rw ends. One call at a time.
func (g *Guest) Serve(ctx context.Context, rw io.ReadWriter) error { return g.server.Serve(ctx, rw) }

// Close ends it and waits for what it ran.
func (g *Guest) Close() { g.state.end() }
