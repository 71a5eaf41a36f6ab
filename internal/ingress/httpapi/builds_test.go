package httpapi_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// oneImage is a registry that has one image.
type oneImage struct{}

func (oneImage) Server(string) (string, error) { return "images.test", nil }

func (oneImage) Find(_ context.Context, ref string, who *api.RegistryAuth) (build.Image, error) {
	if ref != "registry.example.com/app:1" || who == nil || who.Token != "let me in" {
		return build.Image{}, api.Errorf(api.NotFound, "image %s is not there for %+v", ref, who)
	}
	return build.Image{
		Digest: "sha256:aa",
		Base:   dockerfile.Base{},
		Flatten: func(_ context.Context, w io.Writer, _ func(int64) error) error {
			_, err := w.Write(archive("etc/os", "image"))
			return err
		},
	}, nil
}

// archive returns a tar stream of one file.
func archive(name, text string) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: 0o644}) // to memory
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return out.Bytes()
}

// newBuilder returns a server whose templates and builds are the real services, over a simulated host.
func newBuilder(t *testing.T) (*fixture, *hosttest.Host) {
	t.Helper()
	h, log, dir := hosttest.New(), slog.New(slog.DiscardHandler), t.TempDir()
	t.Cleanup(h.Close)
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(dir, "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // nothing reads it any more
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tpl, err := template.New(h, db, nil, nil)
	fail(err)
	own, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: db, Host: h, Templates: tpl, Log: log})
	fail(err)
	jobs, err := job.New(job.Config{Exclusive: true}, db, log)
	fail(err)
	b, err := build.New(build.Config{Dir: filepath.Join(dir, "builds"), GCInterval: time.Hour},
		build.Deps{Store: db, Jobs: jobs, Host: h, Templates: tpl, Sandboxes: own, Registry: oneImage{}, Log: log})
	fail(err)
	fail(b.Open(t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- b.Run(ctx) }()
	go func() { done <- jobs.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
	})
	w := &fixture{t: t, boxes: &fakeSandboxes{host: h}}
	ports := proxy.New(proxy.Config{Log: log})
	t.Cleanup(ports.Close)
	s, err := httpapi.New(httpapi.Config{PreviewKey: bytes.Repeat([]byte("k"), 32)},
		httpapi.Deps{Sandboxes: own, Templates: tpl, Builds: b, Keys: keys{}, Proxy: ports, Log: log})
	fail(err)
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w, h
}

// form sends a form as the published clients do: fields, then files by their paths.
func (w *fixture) form(fields url.Values, files map[string]string) response {
	w.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for name, values := range fields {
		if err := form.WriteField(name, values[0]); err != nil {
			w.t.Fatal(err)
		}
	}
	for path, text := range files {
		part, err := form.CreateFormFile(path, filepath.Base(path))
		if err == nil {
			_, err = io.WriteString(part, text)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	if err := form.Close(); err != nil {
		w.t.Fatal(err)
	}
	return w.do("POST", "/v1/templates/build", body.String(), with("Content-Type", form.FormDataContentType()))
}

// ended waits for the end of the build in a response.
func (w *fixture) ended(a response) (b api.Build) {
	w.t.Helper()
	a.json(w.t, &b)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !b.Status.Ended(); <-tick.C {
		if time.Now().After(end) {
			w.t.Fatalf("the build did not end: %+v", b)
		}
		w.do("GET", "/v1/templates/builds/"+string(b.ID), "").json(w.t, &b)
	}
	return b
}

// TestBuildForms checks the three forms of a build, and what they refuse.
func TestBuildForms(t *testing.T) {
	w, _ := newBuilder(t)
	text := url.Values{
		"name":       {"app"},
		"dockerfile": {"FROM base\nCOPY dir/a.txt /srv/\nRUN cat /srv/a.txt\n"},
		"size_mb":    {"4096"},
		"memory_mb":  {"256"},
	}
	a := w.form(text, map[string]string{"dir/a.txt": "bamboo\n"})
	b := w.ended(a)
	if a.status != 202 || b.Status != api.BuildDone || b.Name != "app" || b.SizeMB != 4096 || b.Bytes == 0 ||
		b.EndedAt == nil ||
		b.OwnerWorkspace != "ours" {
		t.Fatalf("build of a Dockerfile: got %d %+v, want it done", a.status, b)
	}
	if log := w.do("GET", "/v1/templates/builds/"+string(b.ID)+"/logs", ""); !strings.Contains(log.body, "bamboo\n") ||
		!strings.HasPrefix(log.header.Get("Content-Type"), "text/plain") {
		t.Errorf("log of the build: got %v %s", log.header, log.body)
	}
	if a := w.form(text, map[string]string{"dir/a.txt": "bamboo\n"}); a.status != 200 || w.ended(a).ID != b.ID {
		t.Errorf("the same build again: got %d %s, want it reused", a.status, a.body)
	}
	if a := w.form(text, map[string]string{"dir/a.txt": "grass\n"}); a.status != 409 {
		t.Errorf("another build without replace: got %d %s, want a conflict", a.status, a.body)
	}
	text.Set("replace", "true")
	if a := w.form(text, map[string]string{"dir/a.txt": "grass\n"}); a.status != 202 ||
		w.ended(a).Status != api.BuildDone {
		t.Errorf("another build with replace: got %d %s, want a new version", a.status, a.body)
	}
	image := url.Values{
		"name":           {"image"},
		"image_ref":      {"registry.example.com/app:1"},
		"size_mb":        {"64"},
		"cpu":            {"2"},
		"registry_token": {"let me in"},
	}
	encoded := with("Content-Type", "application/x-www-form-urlencoded")
	if a := w.do("POST", "/v1/templates/build", image.Encode(), encoded); a.status != 202 ||
		w.ended(a).Status != api.BuildDone {
		t.Errorf("build of an image: got %d %s, want it done", a.status, a.body)
	}
	rootfs := map[string]string{"rootfs": string(archive("etc/os", "root"))}
	if a := w.form(url.Values{"name": {"root"}, "size_mb": {"64"}}, rootfs); a.status != 202 ||
		w.ended(a).Status != api.BuildDone {
		t.Errorf("build of a root file system: got %d %s, want it done", a.status, a.body)
	}
	var list []api.Template
	w.do("GET", "/v1/templates", "").json(t, &list)
	found := map[string]api.Template{}
	for _, one := range list {
		found[one.Name] = one
	}
	if found["app"].MemoryMB != 256 || found["app"].Workspace != "ours" || found["app"].IsGlobal ||
		found["image"].CPU != 2 ||
		found["root"].Name == "" ||
		!found["base"].IsGlobal {
		t.Errorf("got templates %+v", found)
	}
	var builds []api.Build
	if w.do("GET", "/v1/templates/builds", "").json(t, &builds); len(builds) != 4 || builds[0].Name != "root" {
		t.Errorf("got builds %+v", builds)
	}
	for _, row := range []struct {
		what, method, path, key string
		status                  int
	}{
		{"a build of another workspace", "GET", "/v1/templates/builds/" + string(b.ID), keyStranger, 404},
		{"its log", "GET", "/v1/templates/builds/" + string(b.ID) + "/logs?follow=1", keyStranger, 404},
		{"a template of another workspace", "DELETE", "/v1/templates/app", keyStranger, 404},
		{"a template of everyone", "DELETE", "/v1/templates/base", keyAdmin, 403},
		{"a template of ours", "DELETE", "/v1/templates/app", keyMember, 204},
		{"a template that was deleted", "DELETE", "/v1/templates/app", keyMember, 404},
		{"an end of what has ended", "POST", "/v1/templates/builds/" + string(b.ID) + "/cancel", keyAdmin, 409},
	} {
		if a := w.do(row.method, row.path, "", with("Authorization", "Bearer "+row.key)); a.status != row.status {
			t.Errorf("%s: got %d %s", row.what, a.status, a.body)
		}
	}
	for what, bad := range map[string]struct {
		fields url.Values
		files  map[string]string
		status int
	}{
		"no source":   {url.Values{"name": {"x"}}, nil, 400},
		"no name":     {url.Values{"dockerfile": {"FROM base"}}, nil, 400},
		"a bad name":  {url.Values{"name": {"a/b"}, "dockerfile": {"FROM base"}}, nil, 400},
		"two sources": {url.Values{"name": {"x"}, "dockerfile": {"FROM base"}, "image_ref": {"y"}}, nil, 400},
		"too small":   {url.Values{"name": {"x"}, "dockerfile": {"FROM base"}, "memory_mb": {"1"}}, nil, 400},
		"no number":   {url.Values{"name": {"x"}, "dockerfile": {"FROM base"}, "cpu": {"two"}}, nil, 400},
		"a path that leaves": {
			url.Values{"name": {"x"}, "dockerfile": {"FROM base"}}, map[string]string{"../a": "1"}, 400},
		"an archive and more": {url.Values{"name": {"x"}}, map[string]string{"rootfs": "1", "a": "2"}, 400},
	} {
		if a := w.form(bad.fields, bad.files); a.status != bad.status {
			t.Errorf("%s: got %d %s", what, a.status, a.body)
		}
	}
}

// TestBakeImage checks making a template of a sandbox's disk in one call, and what such calls refuse.
func TestBakeImage(t *testing.T) {
	w, h := newBuilder(t)
	var box api.Sandbox
	w.do("POST", "/v1/sandboxes", `{"template":"base"}`).json(t, &box)
	path := "/v1/sandboxes/" + string(box.ID)
	w.do("POST", path+"/exec", `{"cmd":"touch /made"}`)
	var got api.BakedImage
	a := w.do("POST", path+"/bake-image", `{"image_name":"mine","workspace":"ours"}`)
	if a.json(t, &got); a.status != 201 || got.Image != "mine" || got.Status != "baked" {
		t.Fatalf("bake-image: got %d %s", a.status, a.body)
	}
	var of api.Sandbox
	w.do("POST", "/v1/sandboxes", `{"template":"mine"}`).json(t, &of)
	if a := w.do("GET", "/v1/sandboxes/"+string(of.ID)+"/fs/stat?path=/made", ""); a.status != 200 {
		t.Errorf("create of the new template: got %d %s, want 201", a.status, a.body)
	}
	for _, row := range []struct {
		what, key, body string
		status          int
		want            string
	}{
		{"a name that is taken", keyMember, `{"image_name":"mine"}`, 409, "exists"},
		{"a stranger", keyStranger, `{"image_name":"x"}`, 404, "not found"},
		{"another workspace", keyMember, `{"image_name":"x","workspace":"theirs"}`, 404, "theirs"},
		{"no name", keyMember, `{}`, 400, "image_name"},
		{"a bad name", keyMember, `{"image_name":"a/b"}`, 400, "image_name"},
		{"a unit", keyMember, `{"image_name":"x","start_unit":"web.service"}`, 501, "start_unit"},
		{"an unknown field", keyMember, `{"image_name":"x","memory":true}`, 400, "memory"},
		{"no JSON", keyMember, `{`, 400, ""},
	} {
		if a := w.do("POST", path+"/bake-image", row.body, as(row.key)); a.status != row.status ||
			!strings.Contains(a.body, row.want) {
			t.Errorf("%s: got %d %s", row.what, a.status, a.body)
		}
	}
	// A bake that takes longer than its caller waits continues.
	open := make(chan struct{})
	h.SetHook(func(ctx context.Context, op, _ string, after bool) error {
		if op == "publish" && !after {
			select {
			case <-open:
			case <-ctx.Done():
			}
		}
		return nil
	})
	a = w.do("POST", path+"/bake-image", `{"image_name":"slow"}`, with("Prefer", "wait=1"))
	if a.json(t, &got); a.status != 202 || got.Status != "baking" {
		t.Fatalf("bake-image: got %d %s", a.status, a.body)
	}
	close(open)
	if b := w.ended(w.do("GET", "/v1/templates/builds/"+string(got.BuildID), "")); b.Status != api.BuildDone {
		t.Errorf("got build %+v, want it done", b)
	}
	// A failed bake says why. A sandbox that has ended cannot be baked.
	h.SetHook(func(_ context.Context, op, _ string, after bool) error {
		if op == "publish" && !after {
			return hostapi.ErrNoSpace
		}
		return nil
	})
	if e := w.do("POST", path+"/bake-image", `{"image_name":"full"}`).failed(t); e.Code != api.NoSpace {
		t.Errorf("got error %+v, want why the bake failed", e)
	}
	w.do("DELETE", path, "")
	if e := w.do("POST", path+"/bake-image", `{"image_name":"late"}`).failed(t); e.Code != api.NotFound ||
		!strings.Contains(e.Message, "delete") {
		t.Errorf("got error %+v, want a refusal", e)
	}
}

// TestBuildLogIsResumed checks that a reader of the log of a running build who is cut off can resume after the last
// line, and gets every line once.
func TestBuildLogIsResumed(t *testing.T) {
	w, h := newBuilder(t)
	open := make(chan struct{})
	h.SetHook(func(ctx context.Context, op, _ string, after bool) error {
		if op == "publish" && !after {
			select {
			case <-open:
			case <-ctx.Done():
			}
		}
		return nil
	})
	var b api.Build
	w.form(url.Values{"name": {"app"}, "dockerfile": {"FROM base\nRUN echo one\nRUN echo two\n"}}, nil).json(t, &b)
	path := "/v1/templates/builds/" + string(b.ID) + "/logs?follow=1"
	var seen []api.BuildLine
	last := ""
	// read reads events until enough returns true, and reports whether the stream ended by itself.
	read := func(enough func(api.BuildLine) bool) bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		rq := w.request("GET", path, "")
		if last != "" {
			rq.Header.Set("Last-Event-ID", last)
		}
		res, err := http.DefaultClient.Do(rq.WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		event := ""
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				last = value
			case "event":
				event = value
			case "data":
				if event == "done" {
					return value == "end"
				}
				var line api.BuildLine
				if err := json.Unmarshal([]byte(value), &line); err != nil {
					t.Fatalf("event %s is not JSON: %v", value, err)
				}
				if seen = append(seen, line); enough(line) {
					return false
				}
			}
		}
		t.Fatalf("the stream broke off after %+v", seen)
		return false
	}
	read(func(l api.BuildLine) bool { return l.Line == "one" })
	read(func(l api.BuildLine) bool { return l.Line == "two" })
	close(open)
	if !read(func(api.BuildLine) bool { return false }) {
		t.Error("the stream did not end by itself")
	}
	for i, line := range seen {
		if line.Seq != int64(i+1) {
			t.Fatalf("line %d has the number %d, want them without gaps: %+v", i+1, line.Seq, seen)
		}
	}
	if n := len(seen); n < 6 || !strings.Contains(seen[n-1].Line, "is ready") {
		t.Errorf("got lines %+v", seen)
	}
	if a := w.do("GET", path+fmt.Sprintf("&after=%d", len(seen)-1), ""); strings.Count(a.body, "event: line") != 1 ||
		!strings.Contains(a.body, "event: done\ndata: end\n") {
		t.Errorf("log after all lines but one = %s, want the last line", a.body)
	}
	if a := w.do("GET", path, "", with("Last-Event-ID", "x")); a.status != 400 {
		t.Errorf("malformed Last-Event-ID: got %d %s, want 400", a.status, a.body)
	}
}
