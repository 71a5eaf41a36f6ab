package proxy_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

func TestAddressOfHost(t *testing.T) {
	sbxabc := proxy.Address{Sandbox: "sbxabc", Port: 3000}
	for _, c := range []struct {
		name, host string
		want       proxy.Address
		ours       bool
		err        error
	}{
		{name: "label", host: "3000-sbxabc.example.com", want: sbxabc, ours: true},
		{name: "label-and-port", host: "3000-sbxabc.localhost:8080", want: sbxabc, ours: true},
		{name: "upper-case", host: "3000-SBXABC.Example.com.", want: sbxabc, ours: true},
		{name: "text-after-id", host: "3000-sbxabc-client1.example.com", want: sbxabc, ours: true},
		{name: "api", host: "api.example.com"},
		{name: "ip-address", host: "10.0.0.1"},
		{name: "no-domain", host: "3000-sbxabc"},
		{name: "digit-first", host: "3com.example.com"},
		{name: "empty", host: ""},
		{name: "port-zero", host: "0-sbxabc.example.com", ours: true, err: proxy.ErrMalformed},
		{name: "port-too-large", host: "70000-sbxabc.example.com", ours: true, err: proxy.ErrMalformed},
		{name: "no-id", host: "3000-.example.com", ours: true, err: proxy.ErrMalformed},
		{name: "id-characters", host: "3000-sbx_abc.example.com", ours: true, err: proxy.ErrMalformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ours, err := proxy.AddressOfHost(&http.Request{Host: c.host})
			if ours != c.ours || !errors.Is(err, c.err) || err == nil && got != c.want {
				t.Errorf(
					"AddressOfHost(%q) = %+v, %v, %v; want %+v, %v, %v",
					c.host,
					got,
					ours,
					err,
					c.want,
					c.ours,
					c.err,
				)
			}
		})
	}
}

func FuzzAddressOfHost(f *testing.F) {
	f.Add("3000-sbxabc.example.com")
	f.Add("[::1]:80")
	f.Add("65536-a.x")
	f.Fuzz(func(t *testing.T, host string) {
		a, ours, err := proxy.AddressOfHost(&http.Request{Host: host})
		if ours && err == nil && (a.Port == 0 || !proxy.IsID(a.Sandbox)) {
			t.Errorf("AddressOfHost(%q) = %+v, want a port and an id", host, a)
		}
	})
}
