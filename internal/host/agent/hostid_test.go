package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/agent"
)

// Everything that a host returns has its id, which stays with the data directory.
func TestResourcesNameTheirHost(t *testing.T) {
	w := newFixture(t)
	mc := w.create(hostapi.Create{ID: "a", Template: "base", Persistent: true})
	if !strings.HasPrefix(string(mc.Host), "hst") {
		t.Errorf("Create() returned host %q, want an id that starts with hst", mc.Host)
	}
	snap, err := w.host.TakeSnapshot(t.Context(), "a", "s", nil)
	w.must(err)
	c, err := w.host.Capacity(t.Context())
	w.must(err)
	templates, err := w.host.Templates(t.Context())
	w.must(err)
	if snap.Host != mc.Host || c.Host != mc.Host || len(templates) == 0 || templates[0].Host != mc.Host {
		t.Errorf("hosts of snapshot, capacity and templates = %q, %q, %+v, want %q", snap.Host, c.Host, templates,
			mc.Host)
	}
	w.restart()
	again, err := w.host.Get(t.Context(), "a")
	w.must(err)
	if again.Host != mc.Host {
		t.Errorf("host after a restart = %q, want %q", again.Host, mc.Host)
	}
	if got, err := w.host.GetSnapshot(t.Context(), "s"); err != nil || got.ID != "s" || got.Host != mc.Host {
		t.Errorf("GetSnapshot(s) = %+v, %v", got, err)
	}
	if _, err := w.host.GetSnapshot(t.Context(), "none"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("GetSnapshot(none) = %v, want ErrNotFound", err)
	}
}

// A host that cannot know whether a machine exists does not say that it does not.
func TestHostSaysNothingOfMachinesItCannotRead(t *testing.T) {
	ctx := t.Context()
	w := newFixture(t)
	if _, err := w.host.Get(ctx, "none"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("Get of a machine that never existed = %v, want ErrNotFound", err)
	}
	w.create(hostapi.Create{ID: "a", Template: "base", Persistent: true})
	w.stop()
	records, err := filepath.Glob(filepath.Join(w.dir, "machines", "a", "*.json"))
	if err != nil || len(records) == 0 {
		t.Fatalf("records of machine a: %v, %v, want one at least", records, err)
	}
	for _, path := range records {
		w.must(os.WriteFile(path, []byte(`{"format": 99999, "unknown": true`), 0o600))
	}
	w.start()
	if _, err := w.host.Get(ctx, "a"); !errors.Is(err, hostapi.ErrUnavailable) || errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("Get of a machine whose record cannot be read = %v, want ErrUnavailable", err)
	}
	closed, err := agent.New(agent.Config{DataDir: t.TempDir()}, agent.Deps{
		Platform: func(context.Context) (string, error) { return "test", nil },
		Rewrite:  func(context.Context, string, string) error { return nil },
	})
	w.must(err)
	_, get := closed.Get(ctx, "a")
	_, list := closed.List(ctx)
	_, snapshot := closed.GetSnapshot(ctx, "s")
	_, capacity := closed.Capacity(ctx)
	for name, err := range map[string]error{"Get": get, "List": list, "GetSnapshot": snapshot, "Capacity": capacity} {
		if !errors.Is(err, hostapi.ErrUnavailable) {
			t.Errorf("%s before Open = %v, want ErrUnavailable", name, err)
		}
	}
}
