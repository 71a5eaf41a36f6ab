package build_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

var (
	alice = auth.Principal{Workspace: "a"}
	eve   = auth.Principal{Workspace: "e"}
)

// fixture is a build service with its job queue, templates and sandboxes over a simulated host.
type fixture struct {
	t         *testing.T
	dir       string
	h         *hosttest.Host
	db        *store.DB
	templates *template.Service
	boxes     *sandbox.Service
	quotas    *quota.Quotas
	cfg       build.Config
	shown     []string       // the references that were resolved with credentials, and those
	registry  build.Registry // nil: the fixture itself, with images
	stop      func()         // ends the process of the service and waits for it
	interrupt func()         // ends the process without waiting
	*build.Service

	mu     sync.Mutex
	images map[string]image
}

// image is an image of the fixture's registry.
type image struct {
	digest string
	files  map[string]string
	config dockerfile.Config
	layers int64 // bytes of its layers on the disk
	err    error // returned when it is resolved
	breaks error // returned in the middle of its files
}

// tempDir returns a directory for one test, in memory if the machine has one: every build writes to the store often.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "pandastack-build")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the next boot removes what stays
	return dir
}

func newFixture(t *testing.T, change func(*build.Config)) *fixture {
	t.Helper()
	w := &fixture{t: t, dir: tempDir(t), h: hosttest.New(), images: map[string]image{}}
	t.Cleanup(w.h.Close)
	w.cfg = build.Config{Dir: filepath.Join(w.dir, "builds"), OrphanGrace: time.Minute, GCInterval: time.Hour}
	if change != nil {
		change(&w.cfg)
	}
	w.start()
	t.Cleanup(func() {
		w.stop()
		_ = w.db.Close() // a test may have closed it
	})
	return w
}

// start makes everything but the host, as a new process does.
func (w *fixture) start() {
	w.t.Helper()
	if w.db != nil {
		_ = w.db.Close() // a test may have closed it
	}
	db, err := store.Open(w.t.Context(), store.Config{DSN: filepath.Join(w.dir, "c.db")})
	if err != nil {
		w.t.Fatal(err)
	}
	w.db = db
	w.quotas = quota.New(quota.Config{}, w.db)
	if w.templates, err = template.New(w.h, w.db, nil, w.quotas); err != nil {
		w.t.Fatal(err)
	}
	if w.boxes, err = sandbox.New(sandbox.Defaults(),
		sandbox.Deps{Store: w.db, Host: w.h, Templates: w.templates, Quotas: w.quotas,
			Log: slog.New(slog.DiscardHandler)}); err != nil {
		w.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	jobs, err := job.New(job.Config{Exclusive: true}, w.db, log)
	if err != nil {
		w.t.Fatal(err)
	}
	found := w.registry
	if found == nil {
		found = w
	}
	w.Service, err = build.New(
		w.cfg,
		build.Deps{
			Store:     w.db,
			Jobs:      jobs,
			Host:      w.h,
			Templates: w.templates,
			Sandboxes: w.boxes,
			Registry:  found,
			Quotas:    w.quotas,
			Log:       log,
		},
	)
	if err == nil {
		err = w.Open(w.t.Context())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- w.Run(ctx) }()
	go func() { done <- jobs.Run(ctx) }()
	w.interrupt = cancel
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			w.t.Error(err)
		}
	})
}

// restart ends the process of the service and begins another.
func (w *fixture) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// Server implements build.Registry.
func (w *fixture) Server(ref string) (string, error) {
	server, _, _ := strings.Cut(ref, "/")
	return server, nil
}

// Find implements build.Registry.
func (w *fixture) Find(_ context.Context, ref string, who *api.RegistryAuth) (build.Image, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if who != nil {
		w.shown = append(w.shown, ref+" "+who.Username+"@"+who.Server)
	}
	i, ok := w.images[ref]
	if !ok {
		return build.Image{}, api.Errorf(api.NotFound, "image %s not found", ref)
	}
	return build.Image{
		Digest: i.digest,
		Bytes:  1 << 20,
		Base:   dockerfile.Base{Config: i.config},
		Flatten: func(_ context.Context, to io.Writer, take func(int64) error) error {
			if err := take(i.layers); err != nil {
				return err
			}
			out := tar.NewWriter(to)
			for name, data := range i.files {
				if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)),
					Mode: 0o644}); err != nil {
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
		},
	}, i.err
}

// files uploads the context of a build.
func (w *fixture) files(files map[string]string) *build.Upload {
	w.t.Helper()
	u, err := w.NewUpload(w.t.Context(), alice, true)
	if err != nil {
		w.t.Fatal(err)
	}
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

// enqueue queues a build.
func (w *fixture) enqueue(spec build.Spec, files map[string]string) api.Build {
	w.t.Helper()
	var u *build.Upload
	if files != nil {
		u = w.files(files)
	}
	b, err := w.Start(w.t.Context(), alice, spec, u)
	if u != nil {
		err = errors.Join(err, u.Close())
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return b
}

// wait waits for a build to end and returns it with its log.
func (w *fixture) wait(id api.BuildID) (api.Build, string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 5*time.Minute)
	defer cancel()
	var log strings.Builder
	last := int64(0)
	err := w.Logs(ctx, alice, id, 0, true, func(l api.BuildLine) error {
		if l.Seq != last+1 {
			w.t.Errorf("got log line %d after line %d, want each number once", l.Seq, last)
		}
		last = l.Seq
		fmt.Fprintf(&log, "%s | %s | %s\n", l.Level, l.Step, l.Line)
		return nil
	})
	if err != nil {
		w.t.Fatalf("Logs(%s): %v, after\n%s", id, err, log.String())
	}
	w.WaitIdle(id)
	b, err := w.Get(ctx, alice, id)
	if err != nil || !b.Status.Ended() {
		w.t.Fatalf("Get(%s) after the end of its log = %+v, %v; want an ended build", id, b, err)
	}
	return b, log.String()
}

// mustBuild builds and fails the test unless the build succeeds.
func (w *fixture) mustBuild(spec build.Spec, files map[string]string) (api.Build, string) {
	w.t.Helper()
	b, log := w.wait(w.enqueue(spec, files).ID)
	if b.Status != api.BuildDone {
		w.t.Fatalf("got build %+v, want it done\n%s", b, log)
	}
	return b, log
}

// readFile returns the content of a file in a new sandbox of a template, or the text of the error.
func (w *fixture) readFile(name, file string) string {
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

// checkClean is checkLeftovers, and fails unless the host has so many published templates.
func (w *fixture) checkClean(templates int) {
	w.t.Helper()
	w.checkLeftovers()
	list, err := w.h.Templates(context.WithoutCancel(w.t.Context()))
	n := 0
	for _, t := range list {
		if t.Published {
			n++
		}
	}
	if err != nil || n != templates {
		w.t.Errorf("got %d published templates on the host, %v; want %d", n, err, templates)
	}
}

// checkLeftovers fails unless the host has exactly the templates of all versions and the snapshots of all layers, and
// the directory only the inputs of failed builds.
func (w *fixture) checkLeftovers() {
	w.t.Helper()
	ctx := context.WithoutCancel(w.t.Context())
	for _, m := range w.h.Machines() {
		if m.Labels[hostapi.LabelKind] != "" {
			w.t.Errorf("got machine %s of a build on the host, want none", m.ID)
		}
	}
	images, err := w.h.Images(ctx)
	if err != nil || len(images) != 0 {
		w.t.Errorf("got images %v on the host, %v; want none", images, err)
	}
	layers, err1 := w.db.Read().Layers(ctx, "")
	versions, err2 := w.db.Read().Versions(ctx, "")
	snapshots, err3 := w.h.Snapshots(ctx)
	templates, err4 := w.h.Templates(ctx)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		w.t.Fatal(err)
	}
	var want, have []string
	for _, l := range layers {
		want = append(want, l.Snapshot)
	}
	for _, v := range versions {
		want = append(want, v.ID)
	}
	for _, s := range snapshots {
		if s.Labels[hostapi.LabelKind] != "" {
			have = append(have, string(s.ID))
		}
	}
	for _, t := range templates {
		if t.Published {
			have = append(have, string(t.Name))
		}
	}
	for _, id := range have {
		if !slices.Contains(want, id) {
			w.t.Errorf("got %s on the host, want only layers and versions that have rows", id)
		}
	}
	for _, id := range want {
		if !slices.Contains(have, id) {
			w.t.Errorf("%s has a row and is not on the host", id)
		}
	}
	w.checkFiles(ctx)
}

func (w *fixture) checkFiles(ctx context.Context) {
	w.t.Helper()
	spool, err := os.ReadDir(filepath.Join(w.cfg.Dir, "spool"))
	if err != nil || len(spool) != 0 {
		w.t.Errorf("got uploads %v, %v; want none", spool, err)
	}
	inputs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "inputs"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range inputs {
		if row, err := w.db.Read().Build(ctx, e.Name()); err != nil || row.State == "done" {
			w.t.Errorf("got inputs of build %s in state %q, %v; want those of failed builds only",
				e.Name(), row.State, err)
		}
	}
}

// allow gives a workspace a quota of its own.
func (w *fixture) allow(p auth.Principal, kind quota.Kind, n int64) {
	w.t.Helper()
	err := w.db.Write(w.t.Context(), "allow", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutWorkspace(ctx, &store.Workspace{ID: string(p.Workspace)}); err != nil {
			return err
		}
		return quota.Change{kind: &n}.Apply(ctx, tx, p.Workspace)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}
