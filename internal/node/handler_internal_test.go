package node

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// TestRatesOfPorts checks that the settings of a node limit the requests to ports.
func TestRatesOfPorts(t *testing.T) {
	for _, setting := range []string{"PANDASTACK_RATE_LIMIT_PORT_PER_S", "PANDASTACK_RATE_LIMIT_PORT_ADDRESS_PER_S"} {
		n := newNode(t, setting+"=1")
		host := hosttest.New()
		t.Cleanup(host.Close)
		t.Cleanup(func() {
			if err := n.undo.UnwindWithin(context.WithoutCancel(t.Context()), time.Minute); err != nil {
				t.Error(err)
			}
		})
		handler, _, _, err := n.control(t.Context(), host)
		if err != nil {
			t.Fatal(err)
		}
		statuses := map[int]int{}
		for range 500 { // slower requests than one a second would pass
			r := httptest.NewRequest(http.MethodGet, "http://49983-sbxa.localhost/health", nil)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if statuses[w.Code]++; w.Code == http.StatusTooManyRequests {
				break
			}
		}
		if statuses[http.StatusTooManyRequests] != 1 || statuses[http.StatusBadGateway] < 2 || len(statuses) != 2 {
			t.Errorf("%s=1: responses by status: %v; want some of 502 for an unknown sandbox, then 429",
				setting, statuses)
		}
	}
}

// TestServe sends odd requests to the listener of a node over a simulated host: none is answered in another form than
// the documented one.
func TestServe(t *testing.T) {
	n := newNode(t, "PANDASTACK_LISTEN=127.0.0.1:0", "PANDASTACK_PREVIEW_DOMAIN=guests.example.net")
	host := hosttest.New()
	t.Cleanup(host.Close)
	t.Cleanup(func() {
		if err := n.undo.UnwindWithin(context.WithoutCancel(t.Context()), time.Minute); err != nil {
			t.Error(err)
		}
	})
	handler, _, key, err := n.control(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n.serve(t.Context(), l, handler, nil)
	expired, _ := proxy.SignPreview(make([]byte, 32), proxy.Preview{Sandbox: "sbxa", Port: 80})
	long := "Cookie: " + strings.Repeat("x", proxy.MaxHeader) + "\r\n"
	for _, tt := range []struct {
		name, request string
		status        int
		want          string
	}{
		{"long-headers", "GET /v1/me HTTP/1.1\r\nHost: localhost\r\n" + long + "\r\n", 431, `"code":"too_large"`},
		{"long-headers-of-a-port", "GET / HTTP/1.1\r\nHost: 80-sbxa.localhost\r\n" + long + "\r\n", 431,
			`"error_code":"too_large"`},
		{"duplicate-field", "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + key +
			"\r\nContent-Length: 34\r\n\r\n" + `{"template":"base","template":"b"}`, 400, `"field":"template"`},
		{"forged-preview", "GET /v1/p/" + expired + "/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 401,
			`"code":"unauthenticated"`},
		{"unknown-port", "GET / HTTP/1.1\r\nHost: 80-sbxa.guests.example.net\r\n\r\n", 502, `"error_code":"not_found"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d net.Dialer
			c, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := fmt.Fprint(c, tt.request); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(io.LimitReader(res.Body, 4096))
			if err != nil || res.StatusCode != tt.status || !strings.Contains(string(text), tt.want) {
				t.Errorf("got %d %s, %v; want %d with %s", res.StatusCode, text, err, tt.status, tt.want)
			}
		})
	}
}
