package build_test

import (
	"compress/gzip"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build"
	images "github.com/pandastack/pandastack/internal/control/build/registry"
)

// seedLayers builds a template whose layers later builds use, and returns its Dockerfile.
func (w *fixture) seedLayers() string {
	w.t.Helper()
	const text = "FROM base\nCOPY app.txt /\nRUN echo one\n"
	w.mustBuild(dockerfileOf("good", text), map[string]string{"app.txt": "app\n"})
	return text
}

// checkLayersReused fails unless refused builds left nothing and the layers of seedLayers are still used.
func (w *fixture) checkLayersReused(text string) {
	w.t.Helper()
	w.checkLeftovers()
	b, log := w.mustBuild(dockerfileOf("good", text+"RUN echo "+w.t.Name()+"\n"), map[string]string{"app.txt": "app\n"})
	if b.StepsCached != 2 {
		w.t.Errorf("got %+v, want 2 cached steps\n%s", b, log)
	}
}

func TestBadDockerfiles(t *testing.T) {
	w := newFixture(t, nil)
	text := w.seedLayers()
	for _, row := range []struct {
		name, text string
		code       api.Code
		want       string
	}{
		{"no-from", "RUN true\n", api.Invalid, "line 1"},
		{"not-a-dockerfile", "{\"a\": 1}\n", api.Invalid, "line 1"},
		{"unknown", "FROM base\nFETCH x\n", api.Invalid, "line 2"},
		{"no-such-base", "FROM nowhere/at:all\nRUN true\n", api.NotFound, "line 1"},
		{"unsupported", "FROM base\nRUN --mount=type=cache,target=/x true\n", api.Unsupported, "line 2"},
		{"secret-mount", "FROM base\nRUN --mount=type=secret,id=a true\n", api.Unsupported, "mount"},
		{"missing-file", "FROM base\nCOPY nothing.txt /\n", api.Invalid, "nothing.txt"},
		{"escape", "FROM base\nCOPY ../../etc/passwd /\n", api.Invalid, "passwd"},
		{"unknown-stage", "FROM base\nCOPY --from=other /a /b\n", api.NotFound, "line 2"},
		{"failing", "FROM base\nRUN echo why >&2 && false\n", api.Invalid, "why"},
		{"no-such-program", "FROM base\nRUN frobnicate\n", api.Invalid, "frobnicate"},
	} {
		t.Run(row.name, func(t *testing.T) {
			b, log := w.wait(w.enqueue(dockerfileOf("bad", row.text), map[string]string{"app.txt": "app\n"}).ID)
			if b.Status != api.BuildFailed || b.Code != row.code || !strings.Contains(b.Error, row.want) ||
				!strings.Contains(log, "error |") {
				t.Errorf("got %s: %s %q, want failed: %s ...%q... and the error in the log\n%s",
					b.Status, b.Code, b.Error, row.code, row.want, log)
			}
		})
	}
	w.checkLayersReused(text)
}

func TestBadContexts(t *testing.T) {
	w := newFixture(t, func(c *build.Config) { c.MaxUploadBytes = 4 << 20 })
	text := w.seedLayers()
	u := w.files(map[string]string{"a": "1"})
	for _, name := range []string{"../a", "/etc/passwd", "a/../../b", "", "dir/", "a\x00b", "a",
		strings.Repeat("x", 5000)} {
		if err := u.AddFile(name, strings.NewReader("x")); api.CodeOf(err) != api.Invalid {
			t.Errorf("AddFile(%.20q): got %v, want invalid", name, err)
		}
	}
	err := u.AddFile("large", io.LimitReader(zeros{}, 5<<20))
	if err := errors.Join(err, u.Close()); api.CodeOf(err) != api.TooLarge || !strings.Contains(err.Error(), "4 MiB") {
		t.Errorf("AddFile of a large file: got %v, want too_large with the limit", err)
	}
	hash := strings.Repeat("ab", 32)
	for what, row := range map[string]struct {
		body io.Reader
		code api.Code
	}{
		"bomb":     {strings.NewReader(bomb(t, 200)), api.TooLarge},
		"cut-off":  {strings.NewReader(bomb(t, 1)[:100]), api.Invalid},
		"not-gzip": {strings.NewReader("\x1f\x8bnonsense"), api.Invalid},
	} {
		if err := w.PutFiles(t.Context(), alice, hash, row.body); api.CodeOf(err) != row.code {
			t.Errorf("PutFiles(%s): got %v, want %s", what, err, row.code)
		}
	}
	if exists, err := w.HasFiles(t.Context(), alice, hash); err != nil || exists {
		t.Errorf("HasFiles after refused uploads = %v, %v; want false", exists, err)
	}
	// Only the build reads the names in the archive: one leaves the directory.
	if err := w.PutFiles(t.Context(), alice, hash, strings.NewReader(tarOf(t,
		map[string]string{"../../etc/cron.d/x": "x"}))); err != nil {
		t.Fatal(err)
	}
	b, log := w.wait(
		w.enqueue(
			build.Spec{BuildRequest: api.BuildRequest{Name: "bad", FromTemplate: "base", Replace: true}, OnBase: true,
				Steps: []build.Step{{Type: "COPY", Args: []string{"etc", "/x", "", ""}, Files: hash}}},
			nil,
		).ID,
	)
	if b.Code != api.Invalid || !strings.Contains(b.Error, "leaves") {
		t.Errorf("an archive that leaves its directory: got %s %q, want invalid\n%s", b.Code, b.Error, log)
	}
	w.checkLayersReused(text)
}

// zeros reads as zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// bomb returns a gzip stream of a text followed by so many MiB of zeros.
func bomb(t *testing.T, mib int, before ...string) string {
	t.Helper()
	member := func(text string) string {
		var out strings.Builder
		z := gzip.NewWriter(&out)
		_, err := io.WriteString(z, text)
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	return member(strings.Join(before, "")) + strings.Repeat(member(strings.Repeat("\x00", 1<<20)), mib)
}

func TestManyFilesInAContext(t *testing.T) {
	w := newFixture(t, nil)
	u, err := w.NewUpload(t.Context(), alice, true)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 10_000 {
		if err := u.AddFile(fmt.Sprintf("d%d/f%d", n%100, n), strings.NewReader(fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	b, err := w.Start(
		t.Context(),
		alice,
		dockerfileOf("many", "FROM base\nCOPY . /many/\nRUN cat /many/d99/f9999 > /last\n"),
		u,
	)
	if err := errors.Join(err, u.Close()); err != nil {
		t.Fatal(err)
	}
	if got, log := w.wait(b.ID); got.Status != api.BuildDone {
		t.Fatalf("got %+v, want done\n%s", got, log)
	}
	if got := w.readFile("many", "/last"); got != "9999" {
		t.Errorf("got %q in the last file, want 9999", got)
	}
	w.checkClean(1)
}

// TestBadImages builds on images of a registry that interrupts some downloads.
func TestBadImages(t *testing.T) {
	w := newFixture(t, nil)
	var drop atomic.Bool
	var allowed atomic.Int64 // bytes of the next interrupted response; those after it have none
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if drop.Load() && strings.Contains(r.URL.Path, "/blobs/") {
			out = &cutter{out, int(allowed.Swap(0))}
		}
		inner.ServeHTTP(out, r)
	}))
	t.Cleanup(s.Close)
	host := strings.TrimPrefix(s.URL, "http://")
	found, err := images.New(
		images.Config{Dir: filepath.Join(w.dir, "images"), Insecure: []string{host}, Wait: time.Millisecond},
	)
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.registry = found
	w.start()
	text := w.seedLayers()
	noise := make([]byte, 100_000)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	large := string(noise)
	push(t, host+"/app:good", "amd64", map[string]string{"etc/os": "here"})
	push(t, host+"/app:other", "s390x", map[string]string{"etc/os": "elsewhere"})
	push(t, host+"/app:drops", "amd64", map[string]string{"etc/os": large})
	for _, row := range []struct {
		tag  string
		drop bool
		code api.Code
		want string
	}{
		{"good", false, "", ""},
		{"other", false, api.Invalid, "s390x"},
		{"nothing", false, api.NotFound, "nothing"},
		{"drops", true, api.Unavailable, host},
		{"drops", false, "", ""}, // the registry works again
	} {
		drop.Store(row.drop)
		allowed.Store(1000)
		b, log := w.wait(
			w.enqueue(
				build.Spec{
					BuildRequest: api.BuildRequest{Name: "app", ImageRef: host + "/app:" + row.tag, Replace: true},
				},
				nil,
			).ID,
		)
		if b.Code != row.code || !strings.Contains(b.Error, row.want) {
			t.Errorf("%s: got %s %q, want %s ...%q...\n%s", row.tag, b.Code, b.Error, row.code, row.want, log)
		}
		w.checkLeftovers()
	}
	if got := w.readFile("app", "/etc/os"); got != large {
		t.Errorf("got %d bytes in the template, want the %d of the image", len(got), len(large))
	}
	w.checkLayersReused(text)
}

// cutter interrupts a response after a number of bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	if c.left -= n; err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// push pushes an image of one layer to a registry.
func push(t *testing.T, ref, arch string, files map[string]string) {
	t.Helper()
	data := tarOf(t, files)
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(data)), nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// TestBadRoots builds from uploads that are no root file systems, and from one that is small until it is unpacked.
func TestBadRoots(t *testing.T) {
	w := newFixture(t, nil)
	text := w.seedLayers()
	whole := tarOf(t, map[string]string{"etc/os": "x"})
	for what, data := range map[string]string{"bomb": bomb(t, 100, whole),
		"cut": tarOf(t, map[string]string{"etc/os": strings.Repeat("x", 5000)})[:3000], "gzip": "\x1f\x8bnonsense"} {
		u, err := w.NewUpload(t.Context(), alice, false)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(u, data)
		b, serr := w.Start(
			t.Context(),
			alice,
			build.Spec{BuildRequest: api.BuildRequest{Name: "root", SizeMB: 64, Replace: true}, Rootfs: true},
			u,
		)
		if err := errors.Join(err, serr, u.Close()); err != nil {
			t.Fatal(err)
		}
		if got, log := w.wait(b.ID); got.Status != api.BuildFailed || got.Code != api.Invalid || got.Error == "" {
			t.Errorf("%s: got %+v, want failed: invalid\n%s", what, got, log)
		}
		w.checkLeftovers()
	}
	w.checkLayersReused(text)
}
