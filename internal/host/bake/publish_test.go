package bake_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// publishRequest is a template to publish from the disk image that source makes.
var publishRequest = hostapi.Publish{
	Name:      "mine",
	Image:     "img",
	VCPUs:     2,
	MemoryMiB: 128,
	DiskMiB:   1,
	User:      "me",
	Workdir:   "/srv",
	Env:       map[string]string{"A": "1"},
	Ready:     "up?",
	Warm:      []string{"warm it"},
	Labels:    map[string]string{"build": "b1"},
}

func source(t *testing.T) bake.Source {
	t.Helper()
	path := filepath.Join(t.TempDir(), "root.ext4")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return bake.Source{Path: path}
}

func TestPublish(t *testing.T) {
	w := newFixture(t)
	w.exits["up?"] = []int{1}
	var mu sync.Mutex
	var logged []string
	got, err := w.baker.Publish(t.Context(), publishRequest, source(t), func(step, line string) {
		mu.Lock()
		defer mu.Unlock()
		logged = append(logged, step+": "+line)
	})
	if err != nil || !got.Published || !got.Baked || got.Labels["build"] != "b1" || got.VCPUs != 2 {
		t.Fatalf("Publish() = %+v, %v, want a baked template", got, err)
	}
	if text := strings.Join(logged, "\n"); !strings.Contains(text, "boot: booted in") ||
		!strings.Contains(text, "ready: out of up?") ||
		!strings.Contains(text, "warm: warm: warm it") {
		t.Errorf("log is %q, want the output of the commands", text)
	}
	snap, ok, err := w.baker.Current(t.Context(), "mine")
	if err != nil || !ok || snap.Env["A"] != "1" {
		t.Fatalf("Current() = %+v, %v, %v, want the published template", snap, ok, err)
	}
	if _, err := w.baker.Publish(t.Context(), publishRequest, source(t), nil); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("second Publish() = %v, want %v", err, hostapi.ErrExists)
	}
	taken := publishRequest
	taken.Name = "base"
	if _, err := w.baker.Publish(t.Context(), taken, source(t), nil); !errors.Is(err, hostapi.ErrExists) {
		t.Errorf("Publish(name of a recipe) = %v, want %v", err, hostapi.ErrExists)
	}
	// On another platform it is baked again, from its own disk.
	w.platform = "p2"
	next, cold, err := w.baker.Ensure(t.Context(), "mine")
	if err != nil || !cold || next.Ref == snap.Ref {
		t.Fatalf("Ensure() on another platform = %v, cold %v, %v, want a cold bake", next.Ref, cold, err)
	}
	w.checkNothingLeft(1)
	// A machine that runs on it keeps its files.
	if _, err := w.store.Acquire(next.Ref); err != nil {
		t.Fatal(err)
	}
	if err := w.baker.Delete("mine"); err != nil {
		t.Fatal(err)
	}
	if err := w.baker.Delete("mine"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("second Delete() = %v, want %v", err, hostapi.ErrNotFound)
	}
	if err := w.baker.Delete("base"); !errors.Is(err, hostapi.ErrUnsupported) {
		t.Errorf("Delete(recipe) = %v, want %v", err, hostapi.ErrUnsupported)
	}
	w.checkNothingLeft(1)
	if err := w.store.Release(next.Ref); err != nil {
		t.Fatal(err)
	}
	w.checkNothingLeft(0)
	if list, err := w.baker.Templates(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("Templates() = %+v, %v, want only the recipe", list, err)
	}
}

func TestPublishStart(t *testing.T) {
	w := newFixture(t)
	spec := publishRequest
	spec.Start = "serve it"
	if _, err := w.baker.Publish(t.Context(), spec, source(t), nil); err != nil {
		t.Fatal(err)
	}
	w.checkNothingLeft(1)
	spec.Name, w.exits["serve it"] = "two", []int{4}
	w.exits["up?"] = []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	var at *hostapi.PublishError
	_, err := w.baker.Publish(t.Context(), spec, source(t), nil)
	if !errors.As(err, &at) || at.Step != "ready" ||
		!strings.Contains(err.Error(), "the start command failed: the command exited with status 4") {
		t.Errorf("Publish() with a failing start command = %v, want its exit status", err)
	}
	w.checkNothingLeft(1)
}

// A template of a snapshot without its memory boots with copies of all disks of the snapshot, and so does the next bake
// of the template.
func TestPublishKeepsDataDisks(t *testing.T) {
	w := newFixture(t)
	snap, err := w.TakeSnapshot(
		t.Context(),
		"m",
		"snapshots/one",
		func(*snapshot.Snapshot) {},
		func(context.Context, *snapshot.Draft) error { return nil },
	)
	if err != nil {
		t.Fatal(err)
	}
	spec := hostapi.Publish{Name: "grown", Snapshot: "one", VCPUs: 1, MemoryMiB: 64, DiskMiB: 1}
	got, err := w.baker.Publish(t.Context(), spec, bake.Source{Ref: snap.Ref}, nil)
	if err != nil || len(got.Disks) != 1 || got.Disks[0].Mount != "/data" {
		t.Fatalf("Publish() = %+v, %v, want a baked template", got, err)
	}
	if err := w.store.Delete(snap.Ref); err != nil {
		t.Fatal(err)
	}
	w.platform = "p2"
	next, _, err := w.baker.Ensure(t.Context(), "grown")
	if err != nil || len(next.Data) != 1 || len(next.DiskPaths()) != 2 {
		t.Errorf("second bake = %+v, %v, want all disks", next, err)
	}
	w.checkNothingLeft(1)
}

func TestPublishWithMemory(t *testing.T) {
	w := newFixture(t)
	snap, err := w.TakeSnapshot(t.Context(), "m", "snapshots/one", func(s *snapshot.Snapshot) { s.User = "me" },
		func(context.Context, *snapshot.Draft) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	spec := hostapi.Publish{Name: "kept", Snapshot: "one", KeepMemory: true, VCPUs: 1, MemoryMiB: 64, DiskMiB: 1}
	if _, err := w.baker.Publish(t.Context(), spec, bake.Source{Ref: snap.Ref}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Delete(snap.Ref); err != nil {
		t.Fatal(err)
	}
	got, ok, err := w.baker.Current(t.Context(), "kept")
	if err != nil || !ok || got.User != "me" {
		t.Fatalf("Current() = %+v, %v, %v, want the published template", got, ok, err)
	}
	if len(got.DiskPaths()) != 2 || snapshot.Check(got) != nil {
		t.Errorf("disks are %v, want two", got.DiskPaths())
	}
	if data, err := os.ReadFile(filepath.Join(got.Image().Dir, "memory")); err != nil || len(data) != 5<<20 {
		t.Errorf("memory has %d bytes, %v, want %d", len(data), err, 5<<20)
	}
	w.platform = "p2"
	if _, _, err := w.baker.Ensure(t.Context(), "kept"); err == nil ||
		!strings.Contains(err.Error(), "build the template again") {
		t.Errorf("Ensure() on another platform = %v, want the advice to build the template again", err)
	}
	w.checkNothingLeft(1)
}

func TestPublishFailureAfterEveryStep(t *testing.T) {
	injected := errors.New("injected")
	for _, keep := range []bool{false, true} {
		for nth := 0; ; nth++ {
			w := newFixture(t)
			snap, err := w.TakeSnapshot(
				t.Context(),
				"m",
				"snapshots/one",
				func(*snapshot.Snapshot) {},
				func(context.Context, *snapshot.Draft) error { return nil },
			)
			if err != nil {
				t.Fatal(err)
			}
			spec, from := publishRequest, source(t)
			spec.Start = "serve it"
			if keep {
				spec, from = hostapi.Publish{
					Name:       "mine",
					Snapshot:   "one",
					KeepMemory: true,
					VCPUs:      1,
					MemoryMiB:  64,
				}, bake.Source{
					Ref: snap.Ref,
				}
			}
			count := 0
			w.mu.Lock()
			w.step = func(string) error {
				if count++; count-1 == nth {
					return injected
				}
				return nil
			}
			w.mu.Unlock()
			_, err = w.baker.Publish(t.Context(), spec, from, nil)
			w.mu.Lock()
			total := count
			w.step = nil
			w.mu.Unlock()
			if total <= nth {
				if err != nil {
					t.Error(err)
				}
				break
			}
			if !errors.Is(err, injected) {
				t.Fatalf("Publish(keep memory %v) failing in step %d = %v, want the injected error", keep, nth, err)
			}
			if _, _, err := w.baker.Current(t.Context(), "mine"); !errors.Is(err, hostapi.ErrNotFound) {
				t.Errorf("template exists after Publish(keep memory %v) failed in step %d: %v", keep, nth, err)
			}
			w.checkNothingLeft(0)
			w.stop()
		}
	}
}

func TestPublishIsCancelled(t *testing.T) {
	w := newFixture(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	w.mu.Lock()
	w.step = func(step string) error {
		if step == "boot" {
			cancel(errors.New("not wanted any more"))
			<-ctx.Done()
		}
		return nil
	}
	w.mu.Unlock()
	spec := publishRequest
	w.exits["up?"] = make([]int, 0)
	for range 1000 {
		w.exits["up?"] = append(w.exits["up?"], 1)
	}
	if _, err := w.baker.Publish(ctx, spec, source(t), nil); err == nil ||
		!strings.Contains(err.Error(), "not wanted any more") {
		t.Errorf("cancelled Publish() = %v, want the cause", err)
	}
	w.checkNothingLeft(0)
}
