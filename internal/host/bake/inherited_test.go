package bake_test

import (
	"context"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/snapshot"
)

// ran returns the commands since the last call.
func (w *fixture) ran() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.commands
	w.commands, w.running = nil, nil
	return out
}

// The start commands of a recipe run in every template that derives from it, directly or not, and whenever such a
// template is baked again, even if a template in between was deleted.
func TestStartCommandsAreInherited(t *testing.T) {
	w := newFixture(t)
	runs := func(what, want string) {
		t.Helper()
		if got := strings.Join(w.ran(), ", "); got != want {
			t.Errorf("%s: commands are %q, want %q", what, got, want)
		}
	}
	const all = "root: serve, root: ready?, me: serve it, me: up?, user: warm one, user: warm two, me: warm it"
	first := publishRequest
	first.Start, first.Ready = "", ""
	from := source(t)
	from.Of = "base"
	w.ran()
	if _, err := w.baker.Publish(t.Context(), first, from, nil); err != nil {
		t.Fatal(err)
	}
	runs("on the recipe", "root: serve, root: ready?, user: warm one, user: warm two, me: warm it")
	second := publishRequest
	second.Name, second.Image, second.Snapshot, second.Start = "two", "", "one", "serve it"
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
	on := bake.Source{Ref: snap.Ref, Of: "mine"}
	if _, err := w.baker.Publish(t.Context(), second, on, nil); err != nil {
		t.Fatal(err)
	}
	runs("on what is on it", all)
	if err := w.baker.Delete("mine"); err != nil {
		t.Fatal(err)
	}
	w.platform = "p2"
	if _, _, err := w.baker.Ensure(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
	runs("baked again", all)
	// The template of the snapshot was deleted: its start commands are unknown, and the log says so.
	lost := second
	lost.Name = "three"
	var log strings.Builder
	toLog := func(_, line string) { log.WriteString(line + "\n") }
	if _, err := w.baker.Publish(t.Context(), lost, on, toLog); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "was deleted") {
		t.Errorf("log is %q, want a line about the deleted template", log.String())
	}
	runs("on what was deleted", "me: serve it, me: up?, me: warm it")
	if err := w.store.Delete(snap.Ref); err != nil {
		t.Fatal(err)
	}
	w.checkNothingLeft(2)
}

// Publishing fails if an inherited start command exits.
func TestInheritedStartCommandMustRun(t *testing.T) {
	w := newFixture(t)
	w.exitAtOnce = true
	from := source(t)
	from.Of = "base"
	if _, err := w.baker.Publish(t.Context(), publishRequest, from, nil); err == nil ||
		!strings.Contains(err.Error(), "a server has ended: no port for server") {
		t.Errorf("Publish() = %v, want the exit of the program", err)
	}
	if _, err := w.baker.Latest(hostapi.TemplateName("mine")); err == nil {
		t.Error("the template exists, want none")
	}
	w.checkNothingLeft(0)
}
