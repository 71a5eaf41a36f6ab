package httpapi_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// redirect sends a request without a key to a preview address and returns where it leads.
func (w *fixture) redirect(method, path string) *url.URL {
	w.t.Helper()
	r := w.request(method, path, "", as(""))
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	to, err := res.Location()
	if err != nil || res.StatusCode != http.StatusTemporaryRedirect ||
		res.Header.Get("Referrer-Policy") != "no-referrer" || res.Header.Get("Cache-Control") != "no-store" {
		w.t.Fatalf("%s: got %d %v, want a redirect", path, res.StatusCode, res.Header)
	}
	return to
}

// TestPreview checks that a preview leads to the host name of the sandbox's port, and that nothing of a program is
// served below /v1/p/.
func TestPreview(t *testing.T) {
	w := newFixture(t)
	w.program(func(http.ResponseWriter, *http.Request) { t.Error("the program was reached on the host of the API") })
	id, path := w.create()
	var p api.Preview
	w.do("POST", path+"/preview-token", `{"port":3000,"ttl_seconds":60,"paths":["/app"]}`).json(t, &p)
	host := "3000-" + string(id) + ".localhost:" + w.url[strings.LastIndex(w.url, ":")+1:]
	if p.URL != w.url+"/v1/p/"+p.Token+"/" || p.Port != 3000 || time.Until(p.ExpiresAt) > time.Minute ||
		p.HostURL != "http://"+host+"/?"+proxy.PreviewName+"="+p.Token || !strings.HasPrefix(p.ID, "pvw") {
		t.Fatalf("got preview %+v", p)
	}
	at := "/v1/p/" + p.Token
	for rest, want := range map[string]string{
		"/app/x?q=1&pandastack%5Fpreview=z": "/app/x?q=1&", "/app//y%2Fz": "/app//y%2Fz?", "/app": "/app?",
	} {
		want = "http://" + host + want + proxy.PreviewName + "=" + p.Token
		for _, method := range []string{"GET", "POST", "HEAD"} {
			if got := w.redirect(method, at+rest).String(); got != want {
				t.Errorf("%s %s leads to %s, want %s", method, rest, got, want)
			}
		}
	}
	for _, tt := range []struct {
		path string
		code api.Code
	}{
		{at + "/", api.Forbidden},
		{at + "/application", api.Forbidden},
		{at + "/app/%2e%2e/secret", api.Forbidden},
		{at + "/app/%252e%252e/secret", api.Forbidden},
		{at[:len(at)-3] + "xxx/app", api.Unauthenticated},
		{"/v1/p/x/app", api.Unauthenticated},
	} {
		if e := w.do("GET", tt.path, "", as("")).failed(t); e.Code != tt.code {
			t.Errorf("%s: got %s, want %s", tt.path, e.Code, tt.code)
		}
	}
	a := w.do("GET", "/v1/p/x/app", "", as(""), with("Accept", "text/html,*/*"))
	if a.status != http.StatusUnauthorized || !strings.Contains(a.body, "<h1>this preview address does not hold") {
		t.Errorf("a browser got %d %s, want a page", a.status, a.body)
	}
	byAddress := func(r *http.Request) { r.Host = "192.0.2.1:7700" }
	e := w.do("POST", path+"/preview-token", `{"port":80}`, byAddress).failed(t)
	if e.Code != api.Unsupported || !strings.Contains(e.Message, "preview.domain") {
		t.Errorf("API by an address: got %+v, want the setting that is missing", e)
	}
}

// TestPreviewDomains checks the host names of previews against the settings and the host of the request.
func TestPreviewDomains(t *testing.T) {
	w := newFixture(t)
	id, path := w.create()
	for _, tt := range []struct{ name, public, domain, host, want string }{
		{"loopback", "", "", "127.0.0.1:7700", "http://80-ID.localhost:7700"},
		{"loopback-ipv6", "", "", "[::1]:7700", "http://80-ID.localhost:7700"},
		{"localhost", "", "", "localhost", "http://80-ID.localhost"},
		{"name", "", "", "Panda.example:7700", "http://80-ID.panda.example:7700"},
		{"public", "https://panda.example", "", "127.0.0.1:7700", "https://80-ID.panda.example"},
		{"public-port", "https://panda.example:8443/", "", "x", "https://80-ID.panda.example:8443"},
		{"domain", "https://panda.example", "guests.example", "x", "https://80-ID.guests.example"},
		{"domain-without-url", "", "1.nip.example", "127.0.0.1:7700", "http://80-ID.1.nip.example:7700"},
		{"domain-port", "https://panda.example:8443", "guests.example:443", "x", "https://80-ID.guests.example:443"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := httpapi.New(
				httpapi.Config{
					PreviewKey: bytes.Repeat([]byte("k"), 32), PublicURL: tt.public, PreviewDomain: tt.domain,
				},
				httpapi.Deps{
					Sandboxes: w.boxes, Templates: templates{}, Keys: keys{}, Log: slog.New(slog.DiscardHandler),
				},
			)
			if err != nil {
				t.Fatal(err)
			}
			var p api.Preview
			a := httptest.NewRecorder()
			r := w.request("POST", path+"/preview-token", `{"port":80}`)
			r.Host = tt.host
			s.ServeHTTP(a, r)
			response{a.Code, a.Header(), a.Body.String()}.json(t, &p)
			got, _, _ := strings.Cut(p.HostURL, "/?")
			if want := strings.ReplaceAll(tt.want, "ID", string(id)); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}

// TestForwardedCookies checks that cookies of a program behind a path stay below it.
func TestForwardedCookies(t *testing.T) {
	w := newFixture(t)
	w.program(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Set-Cookie"] = []string{"a=1; Path=/", "b=2; Path=/x; Domain=localhost", "c=3"}
		rw.Header().Set("Service-Worker-Allowed", "/")
		_, _ = rw.Write([]byte(r.Header.Get("X-Api-Key") + r.URL.RawQuery))
	})
	_, path := w.create()
	a := w.do("GET", path+"/proxy/3000/?access%5Ftoken=x&y=1", "")
	at := path + "/proxy/3000"
	want := []string{"a=1; Path=" + at + "/", "b=2; Path=" + at + "/x", "c=3; Path=" + at + "/"}
	if got := a.header.Values("Set-Cookie"); strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got cookies %q, want %q", got, want)
	}
	if a.body != "y=1" || a.header.Get("Content-Security-Policy") != "sandbox" ||
		a.header.Get("Service-Worker-Allowed") != "" {
		t.Errorf("got %s %v, want no key and a page without rights", a.body, a.header)
	}
	if a := w.do("GET", path+"/proxy/3000/sw.js", "", with("Service-Worker", "script")); a.status != 403 {
		t.Errorf("service worker on the host of the API: got %d, want 403", a.status)
	}
}
