package build_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/auth"
	"github.com/pandastack/pandastack/internal/build"
	"github.com/pandastack/pandastack/internal/dockerfile"
	"github.com/pandastack/pandastack/internal/hostapi"
	"github.com/pandastack/pandastack/internal/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/sandbox"
	"github.com/pandastack/pandastack/internal/store"
	"github.com/pandastack/pandastack/internal/template"
)

var alice = auth.Principal{Workspace: "a"}

// world is a control plane that builds, over a simulated host.
type world struct {
	t         *testing.T
	dir       string
	h         *hosttest.Host
	db        *store.DB
	templates *template.Service
	boxes     *sandbox.Service
	cfg       build.Config
	stop      func()
	*build.Service

	mu     sync.Mutex
	images map[string]image
}

// image is what the registry has under a reference.
type image struct {
	digest string
	files  map[string]string
	config dockerfile.Config
	err    error // of finding it
	breaks error // in the middle of its files
}

func newWorld(t *testing.T, change func(*build.Config)) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), h: hosttest.New(), images: map[string]image{}}
	t.Cleanup(w.h.Close)
	var err error
	if w.db, err = store.Open(t.Context(), store.Config{DSN: filepath.Join(w.dir, "c.db")}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.db.Close() })
	if w.templates, err = template.New(w.h, w.db, nil); err != nil {
		t.Fatal(err)
	}
	if w.boxes, err = sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: w.db, Host: w.h, Templates: w.templates, Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	w.cfg = build.Config{Dir: filepath.Join(w.dir, "builds"), Grace: time.Minute}
	if change != nil {
		change(&w.cfg)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// start makes a service as a new process does.
func (w *world) start() {
	w.t.Helper()
	var err error
	w.Service, err = build.New(w.cfg, build.Deps{Store: w.db, Host: w.h, Templates: w.templates, Sandboxes: w.boxes, Registry: w, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = w.Open(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// Find implements build.Registry.
func (w *world) Find(_ context.Context, ref string, _ *api.RegistryAuth) (build.Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, ok := w.images[ref]
	if !ok {
		return build.Image{}, api.Errorf(api.NotFound, "image %s not found", ref)
	}
	return build.Image{Digest: i.digest, Bytes: 1 << 20, Base: dockerfile.Base{Config: i.config}, Flatten: func(_ context.Context, to io.Writer) error {
		out := tar.NewWriter(to)
		for name, data := range i.files {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644}); err != nil {
				return err
			}
			if _, err := io.WriteString(out, data); err != nil {
				return err
			}
		}
		if i.breaks != nil {
			return i.breaks
		}
		return out.Close()
	}}, i.err
}

// files makes the context of a build.
func (w *world) files(files map[string]string) *build.Upload {
	w.t.Helper()
	u, err := w.NewUpload(true)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = u.Close() })
	for name, data := range files {
		if err := u.AddFile(name, strings.NewReader(data)); err != nil {
			w.t.Fatal(err)
		}
	}
	return u
}

func dockerfileOf(name, text string) build.Spec {
	return build.Spec{BuildRequest: api.BuildRequest{Name: name, Dockerfile: text, Replace: true}}
}

// begin queues a build.
func (w *world) begin(spec build.Spec, files map[string]string) api.Build {
	w.t.Helper()
	var u *build.Upload
	if files != nil {
		u = w.files(files)
	}
	b, err := w.Start(w.t.Context(), alice, spec, u)
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// ended waits for a build to end and answers it with its log.
func (w *world) ended(id api.BuildID) (api.Build, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), time.Minute)
	defer cancel()
	var log strings.Builder
	last := int64(0)
	err := w.Logs(ctx, alice, id, 0, true, func(l api.BuildLine) error {
		if l.Seq != last+1 {
			w.t.Errorf("line %d comes after line %d", l.Seq, last)
		}
		last = l.Seq
		fmt.Fprintf(&log, "%s | %s | %s\n", l.Level, l.Step, l.Line)
		return nil
	})
	if err != nil {
		w.t.Fatalf("%v, after\n%s", err, log.String())
	}
	b, err := w.Get(ctx, alice, id)
	if err != nil || !b.Status.Ended() {
		w.t.Fatalf("%+v, %v", b, err)
	}
	return b, log.String()
}

// built builds and expects it to go well.
func (w *world) built(spec build.Spec, files map[string]string) (api.Build, string) {
	w.t.Helper()
	b, log := w.ended(w.begin(spec, files).ID)
	if b.Status != api.BuildDone {
		w.t.Fatalf("build %+v\n%s", b, log)
	}
	return b, log
}

// holds reads a file in a sandbox of a template.
func (w *world) holds(name, file string) string {
	w.t.Helper()
	box, err := w.boxes.Create(w.t.Context(), alice, api.CreateRequest{Template: name})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := w.boxes.Delete(context.WithoutCancel(w.t.Context()), alice, box.ID); err != nil {
			w.t.Error(err)
		}
	}()
	g, err := w.boxes.Guest(w.t.Context(), alice, box.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	_, r, err := g.Read(w.t.Context(), file, "", 0, -1)
	if err != nil {
		return err.Error()
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		w.t.Fatal(err)
	}
	return string(data)
}

// clean fails unless the host holds nothing of builds but the given templates and as many layers as there
// are rows for.
func (w *world) clean(templates int) {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	rows, err := w.db.Read().Layers(ctx, "")
	if err != nil {
		w.t.Fatal(err)
	}
	layers := map[string]bool{}
	for _, l := range rows {
		layers[l.Snapshot] = true
	}
	machines := w.h.Machines()
	for _, m := range machines {
		if m.Labels[hostapi.LabelKind] != "" {
			w.t.Errorf("machine %s is left", m.ID)
		}
	}
	snapshots, err := w.h.Snapshots(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, s := range snapshots {
		if s.Labels[hostapi.LabelKind] != "" && !layers[string(s.ID)] {
			w.t.Errorf("snapshot %s is left", s.ID)
		}
	}
	if images, _ := w.h.Images(ctx); len(images) != 0 {
		w.t.Errorf("images are left: %v", images)
	}
	list, _ := w.h.Templates(ctx)
	n := 0
	for _, t := range list {
		if t.Published {
			n++
		}
	}
	if n != templates {
		w.t.Errorf("the host has %d published templates, want %d", n, templates)
	}
}
