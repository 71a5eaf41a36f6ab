package guestlink_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/lib/mux"
)

// hostileGuest is a guest's end of the protocol that responds to every request with the same messages.
type hostileGuest struct {
	messages [][]byte
	reset    *mux.ResetError
	endless  bool
	t        *testing.T
}

func (*hostileGuest) Hello(mux.Hello) {}

func (l *hostileGuest) Stream(st *mux.Stream, _ []byte) {
	ctx := l.t.Context()
	go func() {
		for _, m := range l.messages {
			if st.Send(ctx, m) != nil {
				return
			}
		}
		for l.endless {
			if st.Send(ctx, l.messages[len(l.messages)-1]) != nil {
				return
			}
		}
		if l.reset != nil {
			st.Reset(l.reset.Code, l.reset.Text)
			return
		}
		_ = st.SendFin(ctx, nil)
	}()
}

func serveHostile(t *testing.T, l *hostileGuest) *guestlink.Link {
	t.Helper()
	host, guest := channel(t)
	runHostile(t, l, guest)
	return open(t, host, guestlink.Options{})
}

// runHostile serves a hostile guest at its end of a channel until the test ends.
func runHostile(t *testing.T, l *hostileGuest, guest net.Conn) {
	t.Helper()
	l.t = t
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = mux.NewGuest(guest).Serve(l)
	}()
	t.Cleanup(func() { _ = guest.Close(); <-done })
}

// requests are all requests that have a response.
func requests(t *testing.T, l *guestlink.Link) map[string]func() error {
	ctx := within(t)
	return map[string]func() error{
		"start":     func() error { _, err := l.Start(ctx, guestapi.ProcessSpec{Shell: "x"}); return err },
		"attach":    func() error { _, err := l.Attach(ctx, guestapi.ProcessRef{}, guestapi.Offsets{}); return err },
		"processes": func() error { _, err := l.Processes(ctx); return err },
		"stat":      func() error { _, err := l.Stat(ctx, "/", ""); return err },
		"list":      func() error { _, err := l.List(ctx, "/", "", 1); return err },
		"read":      func() error { _, _, err := l.Read(ctx, "/", "", 0, -1); return err },
		"write": func() error {
			_, err := l.Write(ctx, "/", guestapi.WriteOptions{}, strings.NewReader("x"))
			return err
		},
		"move":  func() error { _, err := l.Move(ctx, "/", "/", ""); return err },
		"mkdir": func() error { _, err := l.MakeDir(ctx, "/", ""); return err },
		"ports": func() error { _, err := l.Ports(ctx); return err },
		"stats": func() error { _, err := l.Stats(ctx); return err },
	}
}

// Malformed responses are errors, and the link survives them.
func TestMalformedResponsesAreErrors(t *testing.T) {
	for name, l := range map[string]*hostileGuest{
		"no message":       {},
		"an empty message": {messages: [][]byte{{}}},
		"garbage":          {messages: [][]byte{append([]byte{0}, strings.Repeat("\xff", 1000)...)}},
		"unknown code":     {messages: [][]byte{{200, 1, 'x'}}},
		"unknown reset":    {reset: &mux.ResetError{Code: 60_000, Text: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			link := serveHostile(t, l)
			for what, do := range requests(t, link) {
				if err := do(); err == nil || errors.Is(err, guestapi.ErrLost) {
					t.Errorf("%s = %v, want an error other than a lost channel", what, err)
				}
			}
		})
	}
}

// A response that does not end is an error and does not fill the host's memory.
func TestEndlessResponseIsAnError(t *testing.T) {
	link := serveHostile(t, &hostileGuest{messages: [][]byte{{0}, make([]byte, 64000)}, endless: true})
	if _, err := link.List(within(t), "/", "", 1); !errors.Is(err, guestapi.ErrInternal) {
		t.Errorf("List() = %v, want %v", err, guestapi.ErrInternal)
	}
}

func TestErrorTextIsPrintable(t *testing.T) {
	link := serveHostile(t, &hostileGuest{reset: &mux.ResetError{Code: uint16(guestapi.ErrorCode(guestapi.ErrNotFound)),
		Text: "\x1b[2J\xff\n" + strings.Repeat("ü", 5000)}})
	_, err := link.Stat(within(t), "/", "")
	if !errors.Is(err, guestapi.ErrNotFound) {
		t.Fatal(err)
	}
	if s := err.Error(); !utf8.ValidString(s) || strings.ContainsAny(s, "\x1b\n") || len(s) > guestapi.MaxText {
		t.Errorf("error text is %q, want at most %d bytes of printable UTF-8", s, guestapi.MaxText)
	}
}

// Malformed events end the reading of the process and nothing else.
func TestMalformedProcessEvents(t *testing.T) {
	for name, event := range map[string][]byte{
		"unknown stream": {9, 0, 'x'}, "negative offset": {1, 1, 'x'}, "exit of nothing": {0, 0}, "empty": {},
	} {
		link := serveHostile(t, &hostileGuest{messages: [][]byte{{0, 1}, event}})
		p, err := link.Start(within(t), guestapi.ProcessSpec{Shell: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Next(within(t)); !errors.Is(err, guestapi.ErrInternal) {
			t.Errorf("Next() of %s = %v, want %v", name, err, guestapi.ErrInternal)
		}
		_ = p.Close()
	}
	link := serveHostile(t, &hostileGuest{messages: [][]byte{{0, 1}}})
	p, err := link.Start(within(t), guestapi.ProcessSpec{Shell: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Next(within(t)); err == nil || err == io.EOF {
		t.Errorf("Next() after an end without an exit = %v, want an error other than io.EOF", err)
	}
}

// Every call that waits returns when the guest dies.
func TestDeadGuestEndsEveryCall(t *testing.T) {
	host, guest := channel(t)
	link := open(t, host, guestlink.Options{})
	errs := make(chan error, 20)
	all := requests(t, link)
	for _, do := range all {
		go func() { errs <- do() }()
	}
	go func() { _, _ = io.Copy(io.Discard, guest) }()
	buf := []byte("no response to anything")
	if _, err := guest.Write(buf); err != nil {
		t.Fatal(err)
	}
	_ = guest.Close()
	for range all {
		if err := <-errs; !errors.Is(err, guestapi.ErrLost) {
			t.Errorf("call over a lost channel = %v, want %v", err, guestapi.ErrLost)
		}
	}
	select {
	case <-link.Done():
	default:
		t.Error("Done() is open after the guest died, want it closed")
	}
}
