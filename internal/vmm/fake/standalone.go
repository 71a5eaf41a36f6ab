package fake

import (
	"context"
	"io"

	"github.com/pandastack/pandastack/internal/guest/server"
)

// Guest is a guest without a machine, for fakes of monitors. It begins paused.
type Guest struct {
	state  *guestState
	server *server.Server
}

// NewGuest returns a guest that was just booted.
func NewGuest() *Guest { return newGuest(newGuestState()) }

// LoadGuest returns the guest that Save wrote.
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

// Pause pauses the guest or lets it continue.
func (g *Guest) Pause(v bool) { g.state.setPaused(v) }

// Save returns the state of the guest, for LoadGuest.
func (g *Guest) Save() ([]byte, error) { return g.state.copy().encode() }

// Serve serves one host until rw ends. Calls must not overlap.
func (g *Guest) Serve(ctx context.Context, rw io.ReadWriter) error { return g.server.Serve(ctx, rw) }

// Close ends the guest and waits for its processes.
func (g *Guest) Close() { g.state.end() }
