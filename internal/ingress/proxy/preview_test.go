package proxy_test

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

var previewKey = bytes.Repeat([]byte("k"), 32)

func TestPreviewTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	said := proxy.Preview{
		Sandbox:   "sbxa",
		Port:      3000,
		Expires:   now.Add(time.Minute),
		Workspace: "ours",
		Paths:     []string{"/a", "/b/"},
	}
	token := proxy.SignPreview(previewKey, said)
	said.Paths = nil
	everything := proxy.SignPreview(previewKey, said)
	for _, tt := range []struct {
		name    string
		key     []byte
		token   string
		now     time.Time
		path    string
		err     error
		allowed bool
	}{
		{"good", previewKey, token, now, "/a/x", nil, true},
		{"prefix-itself", previewKey, token, now, "/b", nil, true},
		{"other-path", previewKey, token, now, "/ab", nil, false},
		{"climbing", previewKey, token, now, "/a/../c", nil, false},
		{"expired", previewKey, token, now.Add(2 * time.Minute), "/a", proxy.ErrExpired, false},
		{"other-key", bytes.Repeat([]byte("x"), 32), token, now, "/a", proxy.ErrForged, false},
		{"no-key", nil, token, now, "/a", proxy.ErrForged, false},
		{"changed", previewKey, "A" + token[1:], now, "/a", proxy.ErrForged, false},
		{"cut", previewKey, strings.Split(token, ".")[0], now, "/a", proxy.ErrForged, false},
		{"everything", previewKey, everything, now, "/any", nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, err := proxy.OpenPreview(tt.key, tt.token, tt.now)
			if !errors.Is(err, tt.err) ||
				err == nil &&
					(v.Allows(tt.path) != tt.allowed ||
						v.Sandbox != "sbxa" || v.Port != 3000 || v.Workspace != "ours") {
				t.Errorf("OpenPreview = %+v, %v; want error %v and allowed %v", v, err, tt.err, tt.allowed)
			}
		})
	}
}

// FuzzPreview checks that no token opens that was not signed.
func FuzzPreview(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	good := proxy.SignPreview(
		previewKey,
		proxy.Preview{Sandbox: "sbxaaaaaaaaaaaaaaaaaaaa", Port: 80, Expires: now, Workspace: "ours"},
	)
	f.Add("x.y")
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := proxy.OpenPreview(previewKey, token, now); err == nil && token != good {
			t.Errorf("OpenPreview(%q) succeeded, want ErrForged", token)
		}
	})
}

// TestPrivatePorts checks that the id alone opens nothing, and that programs do not see what opens their ports.
func TestPrivatePorts(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = rw.Write(
			[]byte(
				"in " + r.RequestURI + " cookie=" + r.Header.Get(
					"Cookie",
				) + " token=" + r.Header.Get(
					trafficHeader,
				),
			),
		)
	}))
	w.boxes.change("sbxa", func(b *running) { b.Network = &api.Network{PrivatePorts: true} })
	sign := func(change func(*proxy.Preview)) string {
		v := proxy.Preview{
			Sandbox:   "sbxa",
			Port:      3000,
			Expires:   time.Now().Add(time.Hour),
			Workspace: "ours",
			Paths:     []string{"/a"},
		}
		if change != nil {
			change(&v)
		}
		return proxy.SignPreview(previewKey, v)
	}
	const host = "3000-sbxa.example.test"
	cookie := func(token string) []string {
		return []string{"Cookie", "x=1; " + proxy.PreviewName + "=" + token + "; y=2"}
	}
	for _, tt := range []struct {
		name, path string
		header     []string
		status     int
		want       string
	}{
		{"nothing", "/", nil, 403, trafficHeader},
		{"wrong token", "/", []string{trafficHeader, "secre"}, 403, trafficHeader},
		{"token", "/q?a=b", []string{trafficHeader, "secret"}, 200, "in /q?a=b cookie= token="},
		{"cookie", "/a/x", cookie(sign(nil)), 200, "in /a/x cookie=x=1; y=2 token="},
		{"cookie of another path", "/b", cookie(sign(nil)), 403, ""},
		{"cookie of another port", "/a", cookie(sign(func(v *proxy.Preview) { v.Port = 3001 })), 403, ""},
		{"cookie of another sandbox", "/a", cookie(sign(func(v *proxy.Preview) { v.Sandbox = "sbxb" })), 403, ""},
		{"expired cookie", "/a", cookie(sign(func(v *proxy.Preview) {
			v.Expires = time.Now().Add(-time.Hour)
		})), 403, ""},
		{"address", "/a?b=c&" + proxy.PreviewName + "=" + sign(nil) + "&d=e", nil, 200, "in /a?b=c&d=e cookie= token="},
		{"address of another path", "/b?" + proxy.PreviewName + "=" + sign(nil), nil, 403, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, text := w.visit(t, host, tt.path, tt.header...)
			if status != tt.status || !strings.Contains(text, tt.want) {
				t.Errorf("got %d %s, want %d with %q", status, text, tt.status, tt.want)
			}
		})
	}
}
