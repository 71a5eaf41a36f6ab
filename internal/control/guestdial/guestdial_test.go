package guestdial_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/guestdial"
)

// remote is a host whose guests can be reached as byte streams only.
type remote struct {
	*hosttest.Host
	dials atomic.Int32
}

// stream hides all of a connection but the byte stream.
type stream struct{ net.Conn }

func (r *remote) DialGuest(ctx context.Context, id hostapi.MachineID) (hostapi.GuestConn, error) {
	r.dials.Add(1)
	c, err := r.Host.DialGuest(ctx, id)
	if err != nil {
		return c, err
	}
	return hostapi.GuestConn{Conn: stream{c.Conn}, Generation: c.Generation}, nil
}

func run(t *testing.T, g guestapi.Guest, command string) string {
	t.Helper()
	p, err := g.Start(t.Context(), guestapi.ProcessSpec{Shell: command})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var out strings.Builder
	for {
		e, err := p.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.Exit != nil {
			return out.String()
		}
		out.Write(e.Data)
	}
}

func TestGuestOverAByteStream(t *testing.T) {
	ctx := t.Context()
	host := &remote{Host: hosttest.New()}
	t.Cleanup(host.Close)
	if _, err := host.Create(ctx, hostapi.Create{ID: "a", Template: "base"}); err != nil {
		t.Fatal(err)
	}
	d := guestdial.New(host)
	t.Cleanup(d.Close)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			g, err := d.Guest(ctx, "a")
			if err != nil {
				t.Error(err)
				return
			}
			want := fmt.Sprint("number ", i)
			if got := run(t, g, "printf '"+want+"'"); got != want {
				t.Errorf("command printed %q, want %q", got, want)
			}
		})
	}
	wg.Wait()
	if n := host.dials.Load(); n != 1 {
		t.Errorf("%d dials for 8 uses of one generation, want 1", n)
	}
	g, err := d.Guest(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("content ", 100_000)
	if _, err := g.Write(ctx, "/tmp/f", guestapi.WriteOptions{Size: -1}, strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	_, r, err := g.Read(ctx, "/tmp/f", "", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != text {
		t.Errorf("read %d bytes, %v, want the %d that were written", len(got), err, len(text))
	}
	_ = r.Close() // all was read
	if err := g.Freeze(ctx, false); !errors.Is(err, guestapi.ErrInvalid) {
		t.Errorf("Freeze over DialGuest = %v, want ErrInvalid: it is the host's", err)
	}
	if err := host.Hibernate(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Stats(ctx); !errors.Is(err, guestapi.ErrLost) {
		t.Errorf("Stats of a generation that has ended = %v, want ErrLost", err)
	}
	<-g.(interface{ Done() <-chan struct{} }).Done() // the host ends the stream with the generation
	if _, err := d.Guest(ctx, "a"); !errors.Is(err, hostapi.ErrWrongState) {
		t.Errorf("Guest of a hibernated machine = %v, want ErrWrongState", err)
	}
	if _, err := host.Wake(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if g, err = d.Guest(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, g, "echo back"); got != "back\n" {
		t.Errorf("command in the next generation printed %q", got)
	}
}

func TestGuestOfALocalHostNeedsNoLink(t *testing.T) {
	host := hosttest.New()
	t.Cleanup(host.Close)
	if _, err := host.Create(t.Context(), hostapi.Create{ID: "a", Template: "base"}); err != nil {
		t.Fatal(err)
	}
	want, err := host.Guest(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := guestdial.New(host).Guest(t.Context(), "a"); got != want || err != nil {
		t.Errorf("Guest() = %p, %v, want the host's own %p", got, err, want)
	}
}
