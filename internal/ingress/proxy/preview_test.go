package proxy_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

var previewKey = bytes.Repeat([]byte("k"), 32)

// earlierToken returns a token as earlier releases made it: without a nonce.
func earlierToken(text string) string {
	h := hmac.New(sha256.New, previewKey)
	h.Write([]byte("preview\x00" + text))
	return base64.RawURLEncoding.EncodeToString([]byte(text)) + "." +
		base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// TestEarlierPreviews checks that the previews that an earlier release made of a sandbox have one id in common.
func TestEarlierPreviews(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, text := range []string{
		"sbxaaaaaaaaaaaaaaaaaaaa|80|1800000060|ours", "sbxaaaaaaaaaaaaaaaaaaaa|81|1800000060|ours|/a",
	} {
		v, err := proxy.OpenPreview(previewKey, earlierToken(text), now)
		if want := proxy.EarlierPreviewID("sbxaaaaaaaaaaaaaaaaaaaa"); err != nil || v.ID != want {
			t.Errorf("%s has the id %q, %v; want %q", text, v.ID, err, want)
		}
	}
}

func TestPreviewTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	said := proxy.Preview{
		Sandbox:   "sbxa",
		Port:      3000,
		Expires:   now.Add(time.Minute),
		Workspace: "ours",
		Paths:     []string{"/a", "/b/"},
	}
	token, id := proxy.SignPreview(previewKey, said)
	if v, err := proxy.OpenPreview(previewKey, token, now); err != nil || v.ID != id || len(id) != 23 {
		t.Errorf("the preview has the id %q, %v; want %q", v.ID, err, id)
	}
	if _, other := proxy.SignPreview(previewKey, said); other == id {
		t.Error("two previews of the same port have the same id")
	}
	said.Paths = nil
	everything, _ := proxy.SignPreview(previewKey, said)
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
		{"everything-climbing", previewKey, everything, now, "/a/..;/b", nil, true},
		{"parameters", previewKey, token, now, "/a/x;y=1", nil, true},
		{"climbing-with-parameters", previewKey, token, now, "/a/..;/c", nil, false},
		{"climbing-by-backslash", previewKey, token, now, `/a/..\c`, nil, false},
		{"encoded-once-more", previewKey, token, now, "/a/%2e%2E/c", nil, false},
		{"encoded-twice-more", previewKey, token, now, "/a/%252e%252e%252fc/100%", nil, false},
		{"encoded-for-ever", previewKey, token, now, "/a/%25252525252e", nil, false},
		{"percent", previewKey, token, now, "/a/100%/%41", nil, true},
		{"zero", previewKey, token, now, "/a/\x00", nil, false},
		{"earlier-form", previewKey, earlierToken("sbxa|3000|1800000060|ours|/a,/b"), now, "/b/x", nil, true},
		{"earlier-form-other-path", previewKey, earlierToken("sbxa|3000|1800000060|ours|/a"), now, "/b", nil, false},
		{"earlier-form-everything", previewKey, earlierToken("sbxa|3000|1800000060|ours"), now, "/b", nil, true},
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
	good, _ := proxy.SignPreview(
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
		token, _ := proxy.SignPreview(previewKey, v)
		return token
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
		{"encoded name", "/a?pandastack%5Fpreview=" + sign(nil) + "&d=e", nil, 200, "in /a?d=e cookie= token="},
		{"second cookie", "/a", []string{"Cookie", proxy.PreviewName + "=x; " + proxy.PreviewName + "=" +
			sign(func(v *proxy.Preview) { v.Sandbox = "sbxb" }) + "; " + proxy.PreviewName + "=" + sign(nil)}, 200,
			"in /a cookie= token="},
		{"cookie of TLS", "/a", []string{"Cookie", "__Host-" + proxy.PreviewName + "=" + sign(nil)}, 200,
			"in /a cookie= token="},
		{"page of its own", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "same-origin"), 200, ""},
		{"page of another sandbox", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "same-site",
			"Sec-Fetch-Mode", "cors", "Origin", "https://3000-sbxb.example.test"), 403, ""},
		{"image in another sandbox", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "same-site",
			"Sec-Fetch-Mode", "no-cors"), 403, ""},
		{"link in another sandbox", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "same-site",
			"Sec-Fetch-Mode", "navigate"), 200, ""},
		{"other port of its own", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "same-site",
			"Sec-Fetch-Mode", "cors", "Origin", "https://8000-sbxa.example.test"), 200, ""},
		{"its own name elsewhere", "/a", append(cookie(sign(nil)), "Sec-Fetch-Site", "cross-site",
			"Sec-Fetch-Mode", "cors", "Origin", "https://8000-sbxa.evil.test"), 403, ""},
		{"other page without TLS", "/a", append(cookie(sign(nil)), "Origin", "http://evil.test"), 403, ""},
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

// TestPreviewOnSharedHost checks that a host name that serves several sandboxes gets no cookie and takes none.
func TestPreviewOnSharedHost(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	w.boxes.change("sbxa", func(b *running) { b.Network = &api.Network{PrivatePorts: true} })
	token, _ := proxy.SignPreview(previewKey, proxy.Preview{
		Sandbox: "sbxa", Port: 3000, Expires: time.Now().Add(time.Hour), Workspace: "ours",
	})
	for _, c := range []struct {
		uri, cookie string
		status      int
	}{
		{"/", proxy.PreviewName + "=" + token, 403}, {"/?" + proxy.PreviewName + "=" + token, "", 200},
	} {
		res, text := w.ask(t, "GET", "localhost", c.uri, http.Header{
			"Test-Sandbox": {"sbxa"}, "Accept": {"text/html"}, "Cookie": {c.cookie},
		})
		if res.StatusCode != c.status || res.Header.Get("Set-Cookie") != "" {
			t.Errorf("%s: got %d %v %s, want %d without a cookie", c.uri, res.StatusCode, res.Header, text, c.status)
		}
	}
}

// TestPreviewOfPage checks what a browser gets for a URL with a preview: a cookie for that host alone.
func TestPreviewOfPage(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(echoRequest))
	w.boxes.change("sbxa", func(b *running) { b.Network = &api.Network{PrivatePorts: true} })
	token, id := proxy.SignPreview(previewKey, proxy.Preview{
		Sandbox: "sbxa", Port: 3000, Expires: time.Now().Add(time.Hour), Workspace: "ours",
	})
	visit := func(name, value string) *http.Response {
		t.Helper()
		const uri = "//evil.test/?a=b&" + proxy.PreviewName + "="
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+uri+token, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "3000-sbxa.example.test"
		req.Header.Set(name, value)
		req.Header.Set("Accept", "text/html")
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		return res
	}
	for _, c := range []struct{ proto, want string }{
		{"http", proxy.PreviewName + "=" + token + "; Path=/; Max-Age=3599; HttpOnly; SameSite=Lax"},
		{"https", "__Host-" + proxy.PreviewName + "=" + token +
			"; Path=/; Max-Age=3599; HttpOnly; Secure; SameSite=None; Partitioned"},
	} {
		res := visit("X-Forwarded-Proto", c.proto)
		if res.StatusCode != http.StatusFound || res.Header.Get("Location") != "/evil.test/?a=b" ||
			res.Header.Get("Set-Cookie") != c.want || res.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: got %d %v, want a redirect on the host with the cookie %s", c.proto, res.StatusCode,
				res.Header, c.want)
		}
	}
	if got := w.opened.count(); got != 2 {
		t.Errorf("two visits were reported %d times", got)
	}
	w.boxes.change("sbxa", func(b *running) { b.Network = nil })
	if res := visit("A", "b"); res.StatusCode != http.StatusFound || res.Header.Get("Set-Cookie") != "" {
		t.Errorf("public port: got %d %v, want a redirect without a cookie", res.StatusCode, res.Header)
	}
	w.boxes.change("sbxa", func(b *running) { b.Network = &api.Network{PrivatePorts: true} })
	w.previews.revoked[id] = true
	if res := visit("A", "b"); res.StatusCode != http.StatusForbidden {
		t.Errorf("revoked preview: got %d, want 403", res.StatusCode)
	}
}

// TestRevocationEndsRequests checks that an open request ends with its preview.
func TestRevocationEndsRequests(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}))
	w.boxes.change("sbxa", func(b *running) { b.Network = &api.Network{PrivatePorts: true} })
	token, id := proxy.SignPreview(previewKey, proxy.Preview{
		Sandbox: "sbxa", Port: 3000, Expires: time.Now().Add(time.Hour), Workspace: "ours",
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-sbxa.example.test"
	req.AddCookie(&http.Cookie{Name: proxy.PreviewName, Value: token})
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	w.previews.mu.Lock()
	w.previews.uses[id]()
	w.previews.mu.Unlock()
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the response ended as if it were complete")
	}
}
