package proxy_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

func TestLocate(t *testing.T) {
	for _, c := range []struct {
		name, host, id, port string
		want                 proxy.Address
		ours, bad            bool
	}{
		{name: "label", host: "3000-sbxabc.example.com", want: proxy.Address{Sandbox: "sbxabc", Port: 3000}, ours: true},
		{name: "label-and-port", host: "3000-sbxabc.localhost:8080", want: proxy.Address{Sandbox: "sbxabc", Port: 3000}, ours: true},
		{name: "upper-case", host: "3000-SBXABC.Example.com.", want: proxy.Address{Sandbox: "sbxabc", Port: 3000}, ours: true},
		{name: "more-behind", host: "3000-sbxabc-client1.example.com", want: proxy.Address{Sandbox: "sbxabc", Port: 3000}, ours: true},
		{name: "headers", host: "sandbox.example.com", id: "sbxabc", port: "49983", want: proxy.Address{Sandbox: "sbxabc", Port: 49983}, ours: true},
		{name: "headers-on-address", host: "127.0.0.1:80", id: "sbxabc", port: "80", want: proxy.Address{Sandbox: "sbxabc", Port: 80}, ours: true},
		{name: "headers-on-address-6", host: "[::1]:80", id: "sbxabc", port: "80", want: proxy.Address{Sandbox: "sbxabc", Port: 80}, ours: true},
		{name: "headers-do-not-redirect-a-label", host: "3000-sbxabc.example.com", id: "sbxother", port: "1", want: proxy.Address{Sandbox: "sbxabc", Port: 3000}, ours: true},
		{name: "headers-on-the-api", host: "api.example.com", id: "sbxabc", port: "80"},
		{name: "api", host: "api.example.com"},
		{name: "address", host: "10.0.0.1"},
		{name: "no-domain", host: "3000-sbxabc"},
		{name: "number-first", host: "3com.example.com"},
		{name: "empty", host: ""},
		{name: "port-zero", host: "0-sbxabc.example.com", ours: true, bad: true},
		{name: "port-large", host: "70000-sbxabc.example.com", ours: true, bad: true},
		{name: "no-id", host: "3000-.example.com", ours: true, bad: true},
		{name: "id-characters", host: "3000-sbx_abc.example.com", ours: true, bad: true},
		{name: "header-port", host: "localhost", id: "sbxabc", port: "x", ours: true, bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Host = c.host
			r.Header.Set("E2b-Sandbox-Id", c.id)
			r.Header.Set("E2b-Sandbox-Port", c.port)
			got, ours, err := proxy.AddressOf(r)
			if ours != c.ours || (err != nil) != c.bad || err == nil && got != c.want {
				t.Errorf(
					"got %+v, ours %v, error %v; want %+v, ours %v, error %v",
					got,
					ours,
					err,
					c.want,
					c.ours,
					c.bad,
				)
			}
		})
	}
}

func FuzzLocate(f *testing.F) {
	f.Add("3000-sbxabc.example.com", "", "")
	f.Add("[::1]:80", "sbxabc", "80")
	f.Add("sandbox.x", "a", "65536")
	f.Fuzz(func(t *testing.T, host, id, port string) {
		r := &http.Request{Host: host, Header: http.Header{"E2b-Sandbox-Id": {id}, "E2b-Sandbox-Port": {port}}}
		p, ours, err := proxy.AddressOf(r)
		if ours && err == nil && (p.Port == 0 || !proxy.IsID(p.Sandbox)) {
			t.Errorf("%q, %q, %q gave %+v", host, id, port, p)
		}
	})
}
