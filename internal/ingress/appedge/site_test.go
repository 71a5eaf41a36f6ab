package appedge_test

import (
	"archive/tar"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/control/app/staticfiles"
	"github.com/pandastack/pandastack/internal/ingress/appedge"
	"github.com/pandastack/pandastack/internal/lib/blob"
)

// site keeps files and returns their set.
func site(t *testing.T, files map[string]string) *staticfiles.Set {
	t.Helper()
	store, err := blob.Open(t.Context(), "file://"+t.TempDir(), blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for name, content := range files {
		h := tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content))}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	all := staticfiles.New(store, t.TempDir(), staticfiles.Limits{})
	if err := all.Store(t.Context(), "dpl1", &archive); err != nil {
		t.Fatal(err)
	}
	set, err := all.Open(t.Context(), "dpl1")
	if err != nil {
		t.Fatal(err)
	}
	return set
}

var script = strings.Repeat("console.log(1)\n", 100)

// Files are served without a machine, also to robots.
func TestSite(t *testing.T) {
	f := newFixture(t, nil).listen()
	set := site(t, map[string]string{
		"index.html": "home", "about.html": "about", "docs/index.html": "docs", "404.html": "lost",
		"assets/app-B8xa91Zq.js": script, "robots.txt": "none", "data.bin": "0123456789",
	})
	f.apps.route.NoProgram, f.apps.route.Files = true, appedge.Site{Set: set}
	const fresh = "public, max-age=0, must-revalidate"
	for _, c := range []struct {
		path, body string
		status     int
		headers    map[string]string
	}{
		{"/", "home", 200, map[string]string{"Content-Type": "text/html; charset=utf-8", "Cache-Control": fresh}},
		{"/about", "about", 200, nil},
		{"/docs/", "docs", 200, nil},
		{"/docs?a=b", "", 308, map[string]string{"Location": "/docs/?a=b"}},
		{"//docs", "", 308, map[string]string{"Location": "/docs/"}},
		{"/nothing", "lost", 404, map[string]string{"Cache-Control": "no-cache"}},
		{"/../../etc/passwd", "lost", 404, nil},
		{"/%2e%2e/%2e%2e/etc/passwd", "lost", 404, nil},
		{"/docs/..%2f..%2fetc/passwd", "lost", 404, nil},
		{"/assets/app-B8xa91Zq.js", script, 200, map[string]string{
			"Content-Type": "text/javascript; charset=utf-8", "Cache-Control": "public, max-age=31536000, immutable",
			"X-Content-Type-Options": "nosniff",
		}},
	} {
		res := f.get(c.path, "User-Agent", "Googlebot")
		if res.StatusCode != c.status || res.body != c.body {
			t.Errorf("%s: %d %.40q, want %d %.40q", c.path, res.StatusCode, res.body, c.status, c.body)
		}
		for name, want := range c.headers {
			if got := res.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", c.path, name, got, want)
			}
		}
	}
	f.want(f.do(f.request(http.MethodPost, "/", nil)), http.StatusMethodNotAllowed, "")
	if f.apps.wakes() != 0 {
		t.Errorf("%d wakes, want 0", f.apps.wakes())
	}
}

// Compressed contents, parts and unchanged files are served as clients ask.
func TestSiteEncodings(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.route.NoProgram = true
	f.apps.route.Files = appedge.Site{Set: site(t, map[string]string{"app.js": script})}
	tags := map[string]bool{}
	for accept, want := range map[string]string{
		"gzip, deflate, br, zstd": "zstd", "gzip, br": "gzip", "br": "", "zstd;q=0, gzip;q=0.5": "gzip",
		"identity": "", "gzip;q=x": "",
	} {
		res := f.get("/app.js", "Accept-Encoding", accept)
		if got := res.Header.Get("Content-Encoding"); res.StatusCode != 200 || got != want {
			t.Errorf("%s: %d %q, want %q", accept, res.StatusCode, got, want)
		}
		if res.Header.Get("Vary") != "Accept-Encoding" || res.ContentLength != int64(len(res.body)) {
			t.Errorf("%s: headers %v", accept, res.Header)
		}
		tag := res.Header.Get("Etag")
		tags[tag] = true
		res = f.get("/app.js", "Accept-Encoding", accept, "If-None-Match", tag)
		if res.StatusCode != http.StatusNotModified {
			t.Errorf("%s with its tag: %d", accept, res.StatusCode)
		}
	}
	if len(tags) != 3 {
		t.Errorf("tags %v, want one for each encoding", tags)
	}
	res := f.get("/app.js", "Range", "bytes=0-6", "Accept-Encoding", "gzip")
	f.want(res, http.StatusPartialContent, "console")
	f.want(f.get("/app.js", "Range", "bytes=9999-"), http.StatusRequestedRangeNotSatisfiable, "")
	head := f.do(f.request(http.MethodHead, "/app.js", nil))
	if head.StatusCode != http.StatusOK || head.body != "" || head.ContentLength != int64(len(script)) {
		t.Errorf("HEAD: %d %d", head.StatusCode, head.ContentLength)
	}
}

// Pages of an app with one page exist; files that it lacks do not.
func TestSitePages(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.apps.route.NoProgram = true
	f.apps.route.Files = appedge.Site{Set: site(t, map[string]string{"index.html": "app"}), SPA: true}
	f.want(f.get("/users/7"), http.StatusOK, "app")
	f.want(f.get("/users/7/"), http.StatusOK, "app")
	f.want(f.get("/missing.js"), http.StatusNotFound, "not found")
}

// A program serves what is no file.
func TestSiteWithProgram(t *testing.T) {
	f := newFixture(t, nil).listen()
	f.wakeTo(program(t, text("program")))
	f.apps.route.Files = appedge.Site{Set: site(t, map[string]string{"logo.png": "logo"}), Program: true}
	f.want(f.get("/logo.png"), http.StatusOK, "logo")
	if f.apps.wakes() != 0 {
		t.Errorf("%d wakes, want 0", f.apps.wakes())
	}
	f.want(f.get("/"), http.StatusOK, "program")
	f.want(f.do(f.request(http.MethodPost, "/logo.png", nil)), http.StatusOK, "program")
}
