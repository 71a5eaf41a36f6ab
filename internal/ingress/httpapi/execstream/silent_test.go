package execstream_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// silentGuest is a guest whose monitor is stopped, from its start or after a program has printed something.
type silentGuest struct {
	guestapi.Guest
	starts bool
}

func (g silentGuest) Start(ctx context.Context, _ guestapi.ProcessSpec) (guestapi.Process, error) {
	if g.starts {
		return &silentProcess{}, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (g silentGuest) Signal(ctx context.Context, _ guestapi.ProcessRef, _ int, _ bool) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

type silentProcess struct {
	guestapi.Process
	printed bool
}

func (p *silentProcess) PID() uint32  { return 7 }
func (p *silentProcess) Close() error { return nil }

func (p *silentProcess) Next(ctx context.Context) (guestapi.Event, error) {
	if !p.printed {
		p.printed = true
		return guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte("early")}, nil
	}
	<-ctx.Done()
	return guestapi.Event{}, context.Cause(ctx)
}

// TestSilentGuest checks that the host keeps the deadline of a command whose guest replies nothing.
func TestSilentGuest(t *testing.T) {
	for _, c := range []struct {
		name    string
		guest   silentGuest
		request api.ExecRequest
		code    api.Code
		output  string
		within  time.Duration
	}{
		{"timeout, not started", silentGuest{}, api.ExecRequest{Cmd: "x", TimeoutSeconds: 3}, api.Timeout, "",
			10 * time.Second},
		{"timeout, started", silentGuest{starts: true}, api.ExecRequest{Cmd: "x", TimeoutSeconds: 3}, api.Timeout,
			"early", 10 * time.Second},
		{"no timeout, not started", silentGuest{}, api.ExecRequest{Cmd: "x"}, api.Unavailable, "", time.Minute},
		{"background", silentGuest{}, api.ExecRequest{Cmd: "x", Background: true}, api.Unavailable, "", time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run, began := execstream.Exec, time.Now()
				if c.request.Background {
					run = execstream.Background
				}
				_, err := run(t.Context(), c.guest, c.request)
				if took := time.Since(began); api.CodeOf(err) != c.code || took > c.within {
					t.Errorf("got %v after %v, want the code %s within %v", err, took, c.code, c.within)
				}
				if e := api.AsError(err); c.output != "" && e.Details["stdout"] != c.output {
					t.Errorf("details of the error = %v, want the output so far", e.Details)
				}
				if c.code == api.Unavailable && !strings.Contains(err.Error(), "does not respond") {
					t.Errorf("error = %v, want it to say that the sandbox does not respond", err)
				}
			})
		})
	}
}
