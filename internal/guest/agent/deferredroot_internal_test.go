package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// rooted is the backend of a machine with a root. It records the calls.
type rooted struct {
	guestapi.Backend
	asked []string
}

func (r *rooted) Freeze(context.Context, bool) error {
	r.asked = append(r.asked, "freeze")
	return nil
}

func (r *rooted) Thaw(context.Context) error {
	r.asked = append(r.asked, "thaw")
	return nil
}

func (r *rooted) Restore(_ context.Context, id guestapi.Identity) error {
	r.asked = append(r.asked, "restore "+id.MachineID)
	return nil
}

func TestDeferredRootMountsAfterACapture(t *testing.T) {
	var r rooted
	var roots []string
	var fail error
	w := &deferredRoot{begin: func(id guestapi.Identity) (guestapi.Backend, error) {
		roots = append(roots, id.MachineID)
		return &r, fail
	}}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.Restore(ctx, guestapi.Identity{MachineID: "one"})) // concerns the machine that waits
	must(w.Freeze(ctx, false))
	must(w.Thaw(ctx)) // after its capture it still waits
	must(w.Restore(ctx, guestapi.Identity{MachineID: "one"}))
	if len(roots) != 0 {
		t.Fatalf("it mounted a root as %v before a restore", roots)
	}
	must(w.Freeze(ctx, false))
	fail = errors.New("no disk")
	if err := w.Restore(ctx, guestapi.Identity{MachineID: "two"}); !errors.Is(err, fail) {
		t.Errorf("Restore without a disk: got error %v", err)
	}
	fail = nil
	must(w.Restore(ctx, guestapi.Identity{MachineID: "two"}))
	must(w.Freeze(ctx, true))
	must(w.Thaw(ctx))
	must(w.Restore(ctx, guestapi.Identity{MachineID: "three"}))
	want := []string{"restore two", "freeze", "thaw", "restore three"}
	if len(roots) != 2 || len(r.asked) != len(want) {
		t.Fatalf("got roots %v, calls %v", roots, r.asked)
	}
	for i := range want {
		if r.asked[i] != want[i] {
			t.Errorf("got calls %v, want %v", r.asked, want)
		}
	}
}
