package bodyrate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/bodyrate"
)

// pipes is a listener whose connections are pipes, so that they live in a bubble of package synctest.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

// serve runs f in a bubble before a server of h, once for each version of HTTP.
func serve(t *testing.T, h http.HandlerFunc, f func(t *testing.T, c *http.Client)) {
	t.Helper()
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprintf("http%d", version), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pipes{conns: make(chan net.Conn), ended: make(chan struct{})}
				srv := &http.Server{
					Handler: bodyrate.Handler(h), Protocols: new(http.Protocols), ReadHeaderTimeout: time.Hour,
				}
				tr := &http.Transport{DialContext: l.dial, Protocols: new(http.Protocols)}
				for _, p := range []*http.Protocols{srv.Protocols, tr.Protocols} {
					p.SetHTTP1(version == 1)
					p.SetUnencryptedHTTP2(version == 2)
				}
				served := make(chan error)
				go func() { served <- srv.Serve(l) }()
				defer func() {
					tr.CloseIdleConnections()
					_ = srv.Close() // its listener is closed by it
					<-served
				}()
				f(t, &http.Client{Transport: tr})
			})
		})
	}
}

// drip is a body of n chunks of the given size with pauses before them.
type drip struct {
	ctx     context.Context
	n, size int
	pause   time.Duration
}

func (d *drip) Read(p []byte) (int, error) {
	if d.n--; d.n < 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(d.pause):
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
	return copy(p, strings.Repeat("x", d.size)), nil
}

// post sends a body and returns the response and how long it took.
func post(t *testing.T, c *http.Client, body *drip, length int64) (status int, text string, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	body.ctx = ctx
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = length
	began := time.Now()
	res, err := c.Do(req)
	if err != nil {
		return 0, err.Error(), time.Since(began)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data), time.Since(began)
}

// readAll responds with the number of bytes in the body, or its error.
func readAll(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		status := http.StatusInternalServerError
		if e, ok := errors.AsType[*api.Error](err); ok {
			status = e.Code.Info().Status
		}
		http.Error(w, err.Error(), status)
		return
	}
	fmt.Fprint(w, n)
}

func TestBodiesMakeProgress(t *testing.T) {
	for _, tt := range []struct {
		name   string
		body   drip
		length int64
		status int
		within time.Duration
	}{
		{"silent", drip{n: 1, size: 1, pause: 10 * time.Hour}, 1000, http.StatusRequestTimeout, 31 * time.Second},
		{"silent-of-unknown-length", drip{n: 1, size: 1, pause: 10 * time.Hour}, -1, http.StatusRequestTimeout,
			31 * time.Second},
		{"dripping", drip{n: 1000, size: 1, pause: 5 * time.Second}, 1000, http.StatusRequestTimeout, 41 * time.Second},
		{"slow-but-steady", drip{n: 600, size: 2048, pause: time.Second}, 600 * 2048, http.StatusOK, time.Hour},
		{"pauses-that-are-not-earned", drip{n: 10, size: 16 << 10, pause: 50 * time.Second}, -1,
			http.StatusRequestTimeout, time.Minute}, // the first pause is longer than the credit of the start
		{"pauses-that-are-earned", drip{n: 100, size: 16 << 10, pause: 12 * time.Second}, -1, http.StatusOK, time.Hour},
		{"at-once", drip{n: 100, size: 100}, 10_000, http.StatusOK, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			serve(t, readAll, func(t *testing.T, c *http.Client) {
				body := tt.body
				status, text, took := post(t, c, &body, tt.length)
				if status != tt.status || took > tt.within {
					t.Errorf("got %d %s after %v, want %d within %v", status, text, took, tt.status, tt.within)
				}
			})
		})
	}
}

// TestBusyHandlers checks that the time in which a handler does not read counts for nothing.
func TestBusyHandlers(t *testing.T) {
	busy := func(w http.ResponseWriter, r *http.Request) {
		for range 5 {
			<-time.After(10 * time.Minute)
			if _, err := io.ReadFull(r.Body, make([]byte, 100)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		readAll(w, r)
	}
	serve(t, busy, func(t *testing.T, c *http.Client) {
		if status, text, _ := post(t, c, &drip{n: 10, size: 100}, 1000); status != http.StatusOK || text != "500" {
			t.Errorf("got %d %s, want 200 500", status, text)
		}
	})
}

// TestUnreadBodies checks that the server does not wait for a body that the handler did not read.
func TestUnreadBodies(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusUnauthorized) }
	serve(t, refuse, func(t *testing.T, c *http.Client) {
		status, text, took := post(t, c, &drip{n: 1, size: 1, pause: 10 * time.Hour}, 1000)
		if status != http.StatusUnauthorized || took > 31*time.Second {
			t.Errorf("got %d %s after %v, want 401 within the first credit", status, text, took)
		}
	})
}

func TestExempt(t *testing.T) {
	stream := func(w http.ResponseWriter, r *http.Request) {
		bodyrate.Exempt(r)
		readAll(w, r)
	}
	serve(t, stream, func(t *testing.T, c *http.Client) {
		status, text, took := post(t, c, &drip{n: 3, size: 1, pause: time.Hour}, -1)
		if status != http.StatusOK || text != "3" || took < 3*time.Hour {
			t.Errorf("got %d %s after %v, want 200 3", status, text, took)
		}
	})
	bodyrate.Exempt(&http.Request{}) // without effect
}

// TestConnectionIsUsedAgain checks that a body that has ended leaves no deadline on its connection.
func TestConnectionIsUsedAgain(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(time.Hour):
		case <-r.Context().Done():
			t.Error("the request was ended while its handler worked")
		}
		_, _ = w.Write(data)
	}
	serve(t, slow, func(t *testing.T, c *http.Client) {
		for range 2 {
			if status, text, _ := post(t, c, &drip{n: 1, size: 3}, 3); status != http.StatusOK || text != "xxx" {
				t.Errorf("got %d %s, want 200 xxx", status, text)
			}
		}
	})
}
