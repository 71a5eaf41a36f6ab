// Package integrationtest runs the whole platform in one process, over machines of package fake.
//
// The control plane, its APIs and the host agent are the real ones, assembled as package node does. A Platform can
// restart its node, after a crash or after a clean stop; the fake machines survive like processes do. It needs no
// privileges, and uses nothing but the test's directory and the loopback interface.
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
	"github.com/pandastack/pandastack/internal/control/preview"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/workspace"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/ballast"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// Platform is a node over fake machines with one template, "base". It must not be used concurrently.
type Platform struct {
	Driver *fake.Driver // driver of the machines, which outlive the node
	Dir    string       // data directory of the node
	URL    string       // URL of the API; changes when the node restarts
	SSH    string       // address of the SSH gateway; changes when the node restarts
	Key    string       // API key of the default workspace
	Client *client.Client

	// Door bounds the requests of the APIs from the next start of the node on; nil: there is no bound.
	Door *access.Door

	t    *testing.T
	undo []func()
	host *agent.Host

	memory, space atomic.Int64 // free bytes of memory and disk
}

// Free memory and disk space unless a test calls SetFree, in bytes.
const (
	plentyOfMemory = 1 << 36
	plentyOfSpace  = 1 << 40
)

// SetFree sets how many bytes of memory and disk the host reports as free.
func (w *Platform) SetFree(memory, disk int64) {
	w.memory.Store(memory)
	w.space.Store(disk)
}

// New starts a platform that stops at the end of the test.
func New(t *testing.T) *Platform {
	t.Helper()
	return Open(t, t.TempDir(), "")
}

// Open is New with an existing data directory, of which key is an API key.
func Open(t *testing.T, dir, key string) *Platform {
	t.Helper()
	w := &Platform{t: t, Driver: fake.New(), Dir: dir, Key: key}
	w.SetFree(plentyOfMemory, plentyOfSpace)
	w.start()
	t.Cleanup(w.stop)
	return w
}

// Crash stops the node as kill -9 does and starts another one, which adopts the running machines.
func (w *Platform) Crash() {
	w.t.Helper()
	w.host.SetLeaveRunning(true)
	w.stop()
	w.start()
}

// Restart stops the node cleanly and starts another one. Persistent sandboxes are hibernated, others end.
func (w *Platform) Restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

// stop stops the node. Further calls do nothing.
func (w *Platform) stop() {
	for i := len(w.undo) - 1; i >= 0; i-- {
		w.undo[i]()
	}
	w.undo = nil
}

// cleanup registers a function that stop calls, last one first.
func (w *Platform) cleanup(f func()) { w.undo = append(w.undo, f) }

// must fails the test if err is not nil.
func (w *Platform) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start starts a node with the platform's data directory and machines.
func (w *Platform) start() {
	w.t.Helper()
	ctx := w.t.Context()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	host := w.openHost(ctx, log)
	weight, err := ballast.In(w.Dir)
	w.must(err)
	w.runUntilStop(func(ctx context.Context) error { return weight.Run(ctx, log) })
	db, err := store.Open(ctx, store.Config{
		DSN: filepath.Join(w.Dir, "control.db"), Key: bytes.Repeat([]byte{7}, store.KeyBytes),
		MakeSpace: func() bool {
			made, err := weight.Release()
			return err == nil && made
		},
	})
	w.must(err)
	w.cleanup(func() { _ = db.Close() }) // the node has stopped
	keys, err := auth.New(db, log)
	w.must(err)
	quotas := quota.New(quota.Config{}, db)
	templates, err := template.New(host, db, template.BuiltinAliases(), quotas)
	w.must(err)
	boxes, err := sandbox.New(sandbox.Defaults(),
		sandbox.Deps{Store: db, Host: host, Templates: templates, Quotas: quotas, Log: log})
	w.must(err)
	workspaces, err := workspace.New(workspace.Deps{Store: db, Quotas: quotas, Keys: keys, Sandboxes: boxes, Log: log})
	w.must(err)
	callers := workspace.Keys{Keys: keys, Quotas: quotas}
	past := metricshistory.New(boxes)
	runner := &repl.Runner{}
	guard := access.New(access.Config{Door: w.Door}, callers, nil)
	e2bAPI, err := e2b.New(
		e2b.Config{Domain: "localhost", Secret: bytes.Repeat([]byte("a"), 32), History: past, Guard: guard},
		boxes, templates, callers, runner,
	)
	w.must(err)
	w.cleanup(e2bAPI.Close)
	previewKey := bytes.Repeat([]byte("k"), 32)
	previews, err := preview.New(db, log)
	w.must(err)
	rules := e2bAPI.SandboxConfig(previewKey)
	rules.Previews = previews
	ports := proxy.New(proxy.Config{
		Resolver:    proxy.NewSandboxResolver(boxes, rules),
		HideHeaders: e2b.HiddenHeaders(),
		IsKey:       e2b.IsKey,
		Log:         log,
	})
	w.cleanup(ports.Close)
	gateway := w.startSSH(ctx, db, keys, boxes, guard, log)
	v1, err := httpapi.New(
		httpapi.Config{Version: "test", PreviewKey: previewKey},
		httpapi.Deps{
			Sandboxes:    boxes,
			Templates:    templates,
			Keys:         callers,
			Guard:        guard,
			Workspaces:   workspaces,
			SSH:          gateway,
			Proxy:        ports,
			Previews:     previews,
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
	w.runUntilStop(boxes.Run)
	w.runUntilStop(past.Run)
	srv := httptest.NewServer(ports.Middleware(e2bAPI.Middleware(v1)))
	w.cleanup(srv.Close)
	w.URL = srv.URL
	w.Client, err = client.New(w.URL, w.Key)
	w.must(err)
}

// runUntilStop runs a component until the node stops.
func (w *Platform) runUntilStop(run func(context.Context) error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	w.cleanup(func() {
		stop()
		<-done
	})
}

// openHost creates the host agent.
func (w *Platform) openHost(ctx context.Context, log *slog.Logger) *agent.Host {
	w.t.Helper()
	recipe := bake.Recipe{
		Name: "base", VCPUs: 1, MemoryMiB: 64, DiskMiB: 1, Digest: "d1",
		Ready: "true", Warm: []string{"echo warm"}, User: "user", Workdir: "/home/user",
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
		Machine:  machine.Deps{Driver: w.Driver, Network: Network{}, Cgroups: Cgroups{}, Disks: Disks{}, Link: Link},
		Platform: func(context.Context) (string, error) { return "test", nil },
		Rewrite:  func(_ context.Context, src, dst string) error { return Disks{}.Clone(src, dst) },
		Log:      log,
	})
	w.must(err)
	w.must(host.Open(ctx))
	w.host = host
	w.cleanup(func() {
		if err := host.Close(context.WithoutCancel(ctx)); err != nil {
			w.t.Error(err)
		}
	})
	w.runUntilStop(host.Run)
	return host
}
