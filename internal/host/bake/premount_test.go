package bake_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// preMountSnapshots returns how machines booted since the last call: "waiting", "pre-mount" or "cold".
func (w *fixture) preMountSnapshots() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, b := range w.boots {
		switch {
		case b.WaitForRoot:
			out = append(out, "waiting")
		case b.From != "":
			out = append(out, "pre-mount")
		default:
			out = append(out, "cold")
		}
	}
	w.boots = nil
	return strings.Join(out, " ")
}

func (w *fixture) publish(name hostapi.TemplateName, change func(*hostapi.Publish)) error {
	w.t.Helper()
	spec := publishRequest
	spec.Name = name
	if change != nil {
		change(&spec)
	}
	_, err := w.baker.Publish(w.t.Context(), spec, source(w.t), nil)
	return err
}

func TestPublishedTemplatesStartFromPreMountSnapshot(t *testing.T) {
	w := newFixture(t)
	step := func(what, want string, err error) {
		t.Helper()
		if got := w.preMountSnapshots(); err != nil || got != want {
			t.Fatalf("%s: boots are %q, %v, want %q", what, got, err, want)
		}
	}
	_, _, err := w.baker.Ensure(t.Context(), "base")
	step("a recipe", "cold", err)
	step("the first of its size", "waiting pre-mount", w.publish("one", nil))
	step("the second", "pre-mount", w.publish("two", nil))
	step("another size", "waiting pre-mount", w.publish("three", func(p *hostapi.Publish) { p.MemoryMiB = 256 }))
	w.stop()
	w.start()
	step("another process", "pre-mount", w.publish("four", func(p *hostapi.Publish) { p.MemoryMiB = 256 }))
	w.platform = "p2"
	step("another platform", "waiting pre-mount", w.publish("five", nil))
	if list := w.store.List(bake.PreMountArea); len(list) != 1 {
		t.Errorf("pre-mount snapshots of other platforms are left: %v", list)
	}
	refused := errors.New("memory does not fit")
	w.refuse = refused
	if err := w.publish("six", nil); !errors.Is(err, refused) {
		t.Errorf("Publish() from a broken pre-mount snapshot = %v, want its error", err)
	}
	w.preMountSnapshots()
	step("after a broken one", "waiting pre-mount", w.publish("six", nil))
	w.refuse = hostapi.ErrNoCapacity
	if err := w.publish("seven", nil); !errors.Is(err, hostapi.ErrNoCapacity) {
		t.Errorf("Publish() without memory left = %v, want %v", err, hostapi.ErrNoCapacity)
	}
	w.preMountSnapshots()
	step("after a shortage", "pre-mount", w.publish("seven", nil))
	for n := range 12 {
		if err := w.publish(hostapi.TemplateName("size"+string(rune('a'+n))),
			func(p *hostapi.Publish) { p.MemoryMiB = 512 + n }); err != nil {
			t.Fatal(err)
		}
	}
	if list := w.store.List(bake.PreMountArea); len(list) != 8 {
		t.Errorf("%d pre-mount snapshots are kept, want 8", len(list))
	}
}

// await waits until the baker has met a condition.
func (w *fixture) await(what string, holds func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			w.t.Fatalf("the baker did not do it in time: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// idle reports whether no job of a template is in progress.
func (w *fixture) idle(name hostapi.TemplateName) bool {
	list, err := w.baker.Templates(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, t := range list {
		if t.Name == name && t.Bake != nil && t.Bake.State == "running" {
			return false
		}
	}
	return true
}

func withoutQuietPeriod(w *fixture) { withJITWarmup(w); w.quietPeriod = time.Millisecond }

func TestPublishedTemplatesAreWarmedUp(t *testing.T) {
	w := newFixture(t, withoutQuietPeriod)
	if err := w.publish("mine", nil); err != nil {
		t.Fatal(err)
	}
	w.await("a rehearsed template", func() bool {
		snap, ok, err := w.baker.Current(t.Context(), "mine") // it is usable during the warm-up
		if err != nil || !ok {
			t.Fatalf("Current() during the JIT warm-up = %v, %v, want a usable template", ok, err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.warmedUp[snap.Ref]
	})
	w.await("its end", func() bool { return w.idle("mine") })
	w.mu.Lock()
	if n := len(w.commands); !slices.Contains(w.commands, "me: true") || w.commands[n-1] != "me: /bin/sh -c true" {
		t.Errorf("commands are %q, want those of the warm-up", w.commands)
	}
	if n := strings.Count(strings.Join(w.commands, ","), "warm it"); n != 1 {
		t.Errorf("the user's warm-up command ran %d times, want once", n)
	}
	w.mu.Unlock()
	w.checkNothingLeft(1)
	// A template without the usual programs is captured all the same.
	w.exits["true"] = []int{127, 127, 127}
	if err := w.publish("bare", nil); err != nil {
		t.Fatal(err)
	}
	w.await("a rehearsed template", func() bool {
		snap, _, _ := w.baker.Current(t.Context(), "bare")
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.warmedUp[snap.Ref]
	})
	w.await("its end", func() bool { return w.idle("bare") })
	w.checkNothingLeft(2)
}

func TestTemplateWithMemoryIsNotWarmedUp(t *testing.T) {
	w := newFixture(t, withoutQuietPeriod)
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
	kept := hostapi.Publish{Name: "kept", Snapshot: "one", KeepMemory: true, VCPUs: 1, MemoryMiB: 64}
	if _, err := w.baker.Publish(t.Context(), kept, bake.Source{Ref: snap.Ref}, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.publish("mine", nil); err != nil {
		t.Fatal(err)
	}
	w.await("the other to be rehearsed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.warmups == 1 })
	w.await("its end", func() bool { return w.idle("mine") })
	w.stop()
	w.start() // warms up existing templates first, then published ones
	if err := w.publish("last", nil); err != nil {
		t.Fatal(err)
	}
	w.await("the last to be rehearsed", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.warmups >= 2 })
	w.await("its end", func() bool { return w.idle("last") })
	if w.warmups != 2 {
		t.Errorf("%d JIT warm-ups, want 2", w.warmups)
	}
	w.checkNothingLeft(3)
}

func TestDeleteEndsJITWarmup(t *testing.T) {
	w := newFixture(t, withoutQuietPeriod)
	begun := make(chan struct{})
	held := make(chan struct{})
	published := false
	w.step = func(step string) error { // mu is held
		if step != "restore" || published {
			return nil
		}
		published = true
		close(begun)
		w.mu.Unlock()
		defer w.mu.Lock()
		<-held
		return nil
	}
	if err := w.publish("mine", nil); err != nil {
		t.Fatal(err)
	}
	<-begun
	deleted := make(chan error, 1)
	go func() { deleted <- w.baker.Delete("mine") }()
	close(held)
	if err := <-deleted; err != nil {
		t.Errorf("Delete() during the JIT warm-up = %v", err)
	}
	if _, _, err := w.baker.Current(t.Context(), "mine"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("Current() of a deleted template = %v, want %v", err, hostapi.ErrNotFound)
	}
	w.checkNothingLeft(0)
}

// The JIT warm-up after a publication fails at each of its steps: the template stays as it was published or is the
// warmed-up one, and exists once.
func TestJITWarmupFailureAfterEveryStep(t *testing.T) {
	for nth := 0; ; nth++ {
		w := newFixture(t, withoutQuietPeriod)
		count, begun := 0, false
		w.step = func(step string) error {
			begun = begun || step == "restore"
			if !begun {
				return nil
			}
			if count++; count-1 == nth {
				return errors.New("injected")
			}
			return nil
		}
		if err := w.publish("mine", nil); err != nil {
			t.Fatal(err)
		}
		w.await("the rehearsal", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return begun })
		w.await("its end", func() bool { return w.idle("mine") })
		w.mu.Lock()
		total := count
		w.mu.Unlock()
		if _, ok, err := w.baker.Current(t.Context(), "mine"); err != nil || !ok {
			t.Fatalf("Current() after a failure in step %d = %v, %v, want a usable template", nth, ok, err)
		}
		w.checkNothingLeft(1)
		w.stop()
		if total <= nth {
			break
		}
	}
}

// The baker is killed after each step of the JIT warm-up after a publication.
func TestKillDuringJITWarmup(t *testing.T) {
	for nth := 0; ; nth++ {
		w := newFixture(t, withoutQuietPeriod)
		killed, count, begun, where := t.TempDir(), 0, false, ""
		w.step = func(step string) error {
			begun = begun || step == "restore"
			if !begun {
				return nil
			}
			if count++; count-1 == nth {
				where = step
				return os.CopyFS(killed, os.DirFS(w.dir))
			}
			return nil
		}
		if err := w.publish("mine", nil); err != nil {
			t.Fatal(err)
		}
		w.await("the rehearsal", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return begun })
		w.await("its end", func() bool { return w.idle("mine") })
		w.stop()
		if where == "" {
			if nth < 3 {
				t.Errorf("a JIT warm-up has %d steps, want more", nth)
			}
			return
		}
		after := openFixture(t, killed, withJITWarmup)
		snap, ok, err := after.baker.Current(t.Context(), "mine")
		if err != nil || !ok {
			t.Fatalf("Current() after a kill in %s = %v, %v, want a usable template", where, ok, err)
		}
		if _, _, err := after.baker.Ensure(t.Context(), "mine"); err != nil || snap.Ref == "" {
			t.Fatalf("bake after a kill in %s: %v", where, err)
		}
		if err := after.publish("next", nil); err != nil { // Run sweeps before it takes a job
			t.Fatal(err)
		}
		after.checkNothingLeft(2)
		after.stop()
		if t.Failed() {
			t.Fatalf("leftovers of a kill in %s", where)
		}
	}
}
