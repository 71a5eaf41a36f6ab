// Package integrationtest is the whole platform in one process: the real control plane and its faces, over a
// real host agent, over fake machines. What runs below is package fake; all that stands on it is what a
// node assembles.
//
// A World can lose its node and get another, as by kill -9 or by a clean stop; its machines, as processes
// do, live on. It belongs to one test and to one goroutine at a time. It uses no privilege, and nothing
// outside the test's directory and the loopback address.
package integrationtest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// World is a platform with one template, "base", that bakes in a moment.
type World struct {
	Driver *fake.Driver // the machines; they outlive the node
	Dir    string       // the node's data
	URL    string       // of the API, as long as this node lives
	Key    string       // of the default workspace
	Client *client.Client

	t    *testing.T
	undo []func()
	host *agent.Host

	memory, space atomic.Int64 // bytes that are free
}

// What is free unless a test says otherwise, in bytes.
const (
	plentyOfMemory = 1 << 36
	plentyOfSpace  = 1 << 40
)

// SetFree says how many bytes of memory and of disk are free from now on.
func (w *World) SetFree(memory, disk int64) {
	w.memory.Store(memory)
	w.space.Store(disk)
}

// New starts a platform. It ends with the test, and must then have left no machine behind that it was not
// told to keep.
func New(t *testing.T) *World {
	t.Helper()
	return Open(t, t.TempDir(), "")
}

// Open is New with an existing data directory, of which key is an API key.
func Open(t *testing.T, dir, key string) *World {
	t.Helper()
	w := &World{t: t, Driver: fake.New(), Dir: dir, Key: key}
	w.SetFree(plentyOfMemory, plentyOfSpace)
	w.start()
	t.Cleanup(w.stop)
	return w
}

// Crash ends the node as kill -9 does, and starts another: machines run on and are adopted.
func (w *World) Crash() {
	w.t.Helper()
	w.host.SetLeaveRunning(true)
	w.stop()
	w.start()
}

// Restart stops the node cleanly and starts another: what is persistent is hibernated, the rest ends.
func (w *World) Restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// stop ends this node once.
func (w *World) stop() {
	for i := len(w.undo) - 1; i >= 0; i-- {
		w.undo[i]()
	}
	w.undo = nil
}

func (w *World) later(f func()) { w.undo = append(w.undo, f) }

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start makes a node over the data directory and the machines that there are.
func (w *World) start() {
	w.t.Helper()
	ctx := w.t.Context()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	host := w.openHost(ctx, log)
	db, err := store.Open(ctx, store.Config{DSN: filepath.Join(w.Dir, "control.db")})
	w.must(err)
	w.later(func() { _ = db.Close() }) // nothing reads it any more
	keys, err := auth.New(db, log)
	w.must(err)
	templates, err := template.New(host, db, template.BuiltinAliases())
	w.must(err)
	boxes, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: db, Host: host, Templates: templates, Log: log})
	w.must(err)
	past := metricshistory.New(boxes)
	runner := &repl.Runner{}
	e2bAPI, err := e2b.New(
		e2b.Config{Domain: "localhost", Secret: bytes.Repeat([]byte("a"), 32), History: past},
		boxes, templates, keys, runner,
	)
	w.must(err)
	w.later(e2bAPI.Close)
	ports := proxy.New(proxy.Config{
		Resolver:    proxy.NewSandboxResolver(boxes, e2bAPI.SandboxConfig(nil)),
		HideHeaders: e2b.HiddenHeaders(),
		Log:         log,
	})
	w.later(ports.Close)
	v1, err := httpapi.New(
		httpapi.Config{Version: "test", PreviewKey: bytes.Repeat([]byte("k"), 32)},
		httpapi.Deps{
			Sandboxes:    boxes,
			Templates:    templates,
			Keys:         keys,
			Proxy:        ports,
			Cells:        runner,
			UsageHistory: past,
			Log:          log,
		},
	)
	w.must(err)
	if key, err := keys.CreateFirst(ctx); err != nil {
		w.t.Fatal(err)
	} else if key != "" {
		w.Key = key
	}
	w.must(boxes.Reconcile(ctx))
	w.live(boxes.Run)
	w.live(past.Run)
	srv := httptest.NewServer(ports.Middleware(e2bAPI.Middleware(v1)))
	w.later(srv.Close)
	w.URL = srv.URL
	w.Client, err = client.New(w.URL, w.Key)
	w.must(err)
}

// live runs a component until this node ends.
func (w *World) live(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.later(func() {
		stop()
		<-done
	})
}

// openHost makes the host agent.
func (w *World) openHost(ctx context.Context, log *slog.Logger) *agent.Host {
	w.t.Helper()
	recipe := bake.Recipe{
		Name: "base", VCPUs: 1, MemoryMiB: 64, DiskMiB: 1, Digest: "d1", Ready: "true", Warm: []string{"echo warm"}, User: "user", Workdir: "/home/user",
		Build: func(_ context.Context, _, image string, _, _ func(string)) error {
			return os.WriteFile(image, make([]byte, 1<<20), 0o600)
		},
	}
	host, err := agent.New(agent.Config{
		DataDir: w.Dir, Recipes: []bake.Recipe{recipe},
		Machine: machine.Config{
			ReadyTimeout: time.Minute, BootTimeout: time.Minute,
			HostMemory: func() (int64, int64, error) { return plentyOfMemory, w.memory.Load(), nil },
			FreeSpace:  func(string) (int64, int64, error) { return plentyOfSpace, w.space.Load(), nil },
			Kernel:     func(context.Context) (machine.Kernel, error) { return machine.Kernel{}, nil },
		},
	}, agent.Deps{
		Machine:  machine.Deps{Driver: w.Driver, Network: Network{}, Cgroups: Groups{}, Disks: Disks{}, Link: Link},
		Platform: func(context.Context) (string, error) { return "test", nil },
		Rewrite:  func(_ context.Context, src, dst string) error { return Disks{}.Clone(src, dst) },
		Log:      log,
	})
	w.must(err)
	w.must(host.Open(ctx))
	w.host = host
	w.later(func() {
		if err := host.Close(context.WithoutCancel(ctx)); err != nil {
			w.t.Error(err)
		}
	})
	w.live(host.Run)
	return host
}
