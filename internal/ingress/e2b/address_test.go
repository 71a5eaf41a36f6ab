package e2b_test

import (
	"bytes"
	"errors"
	"net/http"
	"testing"

	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
)

// addressed returns a request to host with E2B's headers for a sandbox's port.
func addressed(host, id, port string) *http.Request {
	r := &http.Request{Host: host, Header: http.Header{}}
	r.Header.Set("E2b-Sandbox-Id", id)
	r.Header.Set("E2b-Sandbox-Port", port)
	return r
}

// TestAddresses checks the addressers of the protocol, in their order.
func TestAddresses(t *testing.T) {
	p, err := e2b.New(e2b.Config{Secret: bytes.Repeat([]byte{7}, 32)}, nil, nil, nil, &repl.Runner{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	address := func(r *http.Request) (proxy.Address, bool, error) {
		for _, of := range p.SandboxConfig(nil).Addressers {
			if a, ok, err := of(r); ok {
				return a, ok, err
			}
		}
		return proxy.Address{}, false, nil
	}
	for _, c := range []struct {
		name, host, id, port string
		want                 proxy.Address
		ours                 bool
		err                  error
	}{
		{"label", "3000-sbxabc.example.com", "", "", proxy.Address{Sandbox: "sbxabc", Port: 3000}, true, nil},
		{"headers", "sandbox.example.com", "sbxabc", "49983", proxy.Address{Sandbox: "sbxabc", Port: 49983}, true, nil},
		{"headers-on-ipv4", "127.0.0.1:80", "sbxabc", "80", proxy.Address{Sandbox: "sbxabc", Port: 80}, true, nil},
		{"headers-on-ipv6", "[::1]:80", "sbxabc", "80", proxy.Address{Sandbox: "sbxabc", Port: 80}, true, nil},
		{"label-wins-over-headers", "3000-sbxabc.example.com", "sbxother", "1",
			proxy.Address{Sandbox: "sbxabc", Port: 3000}, true, nil},
		{"headers-on-the-api", "api.example.com", "sbxabc", "80", proxy.Address{}, false, nil},
		{"malformed-header-port", "localhost", "sbxabc", "x", proxy.Address{}, true, proxy.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ours, err := address(addressed(c.host, c.id, c.port))
			if got != c.want || ours != c.ours || !errors.Is(err, c.err) {
				t.Errorf("got %+v, %v, %v; want %+v, %v, %v", got, ours, err, c.want, c.ours, c.err)
			}
		})
	}
}

func FuzzAddressOfHeaders(f *testing.F) {
	f.Add("[::1]:80", "sbxabc", "80")
	f.Add("sandbox.x", "a", "65536")
	f.Fuzz(func(t *testing.T, host, id, port string) {
		a, ours, err := e2b.AddressOfHeaders(addressed(host, id, port))
		if ours && err == nil && (a.Port == 0 || !proxy.IsID(a.Sandbox)) {
			t.Errorf("AddressOfHeaders(%q, %q, %q) = %+v, want a port and an id", host, id, port, a)
		}
	})
}
