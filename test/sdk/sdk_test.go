//go:build e2e

// Package sdk_test drives the server with the Go SDK.
//
// The services are the real ones over a simulated host, whose sandboxes are processes of this machine below the real
// guest agent; what needs a machine is tested elsewhere. The scripts in this folder drive a real node with the
// published SDKs of other languages: see test/e2e.
package sdk_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestpipe"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/metricshistory"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// host is a simulated host whose machines run the real guest agent on this machine.
type host struct {
	*hosttest.Host
	reaper *process.Reaper

	mu     sync.Mutex
	guests map[hostapi.MachineID]*agent.Backend
}

// DialGuest returns a channel to a guest agent of this process, one for each machine.
func (h *host) DialGuest(ctx context.Context, id hostapi.MachineID) (hostapi.GuestConn, error) {
	simulated, err := h.Host.DialGuest(ctx, id)
	if err != nil {
		return hostapi.GuestConn{}, err
	}
	if err := simulated.Conn.Close(); err != nil {
		return hostapi.GuestConn{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.guests[id] == nil {
		h.guests[id] = agent.New(agent.Config{Reaper: h.reaper})
	}
	return guestpipe.New(ctx, h.guests[id], simulated.Generation), nil
}

func (h *host) Destroy(ctx context.Context, id hostapi.MachineID, cause string) error {
	h.mu.Lock()
	g := h.guests[id]
	delete(h.guests, id)
	h.mu.Unlock()
	if g != nil {
		g.Close()
	}
	return h.Host.Destroy(ctx, id, cause)
}

// serve starts the whole control plane and returns its address and an admin's key.
//
// With SDK_TEST_API and SDK_TEST_KEY set the tests drive that node instead, with the machines that it has.
func serve(t *testing.T) (address, key string) {
	t.Helper()
	if address = os.Getenv("SDK_TEST_API"); address != "" {
		return address, os.Getenv("SDK_TEST_KEY")
	}
	ctx := t.Context()
	h := &host{Host: hosttest.New(), reaper: process.NewReaper(false), guests: map[hostapi.MachineID]*agent.Backend{}}
	t.Cleanup(h.Close)
	h.AddTemplate(hostapi.Template{Name: "base", VCPUs: 1, MemoryMiB: 256, DiskMiB: 1024, Baked: true})
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	db, err := store.Open(ctx, store.Config{DSN: filepath.Join(t.TempDir(), "control.db")})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	keys, err := auth.New(db, log)
	must(t, err)
	templates, err := template.New(h, db, template.BuiltinAliases(), nil)
	must(t, err)
	boxes, err := sandbox.New(sandbox.Defaults(), sandbox.Deps{Store: db, Host: h, Templates: templates, Log: log})
	must(t, err)
	run, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = boxes.Run(run) }) // returns when its context ends
	t.Cleanup(func() { stop(); running.Wait() })
	ports := proxy.New(proxy.Config{Log: log})
	t.Cleanup(ports.Close)
	face, err := httpapi.New(
		httpapi.Config{Version: "test", PreviewKey: bytes.Repeat([]byte("k"), 32)},
		httpapi.Deps{
			Sandboxes:    boxes,
			Templates:    templates,
			Keys:         keys,
			Proxy:        ports,
			UsageHistory: metricshistory.New(boxes),
			Log:          log,
		},
	)
	must(t, err)
	srv := httptest.NewServer(face)
	t.Cleanup(srv.Close)
	key, err = keys.CreateFirst(ctx)
	must(t, err)
	return srv.URL, key
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
