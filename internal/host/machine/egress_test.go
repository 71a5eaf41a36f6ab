package machine_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// wantEgress fails unless a machine's policy is recorded and, if the machine runs, applied.
func (w *fixture) wantEgress(id string, want hostapi.Egress) {
	w.t.Helper()
	mc, err := w.mgr.Get(hostapi.MachineID(id))
	w.must(err)
	if !mc.Egress.Equal(want) {
		w.t.Errorf("egress policy of machine %s = %+v, want %+v", id, mc.Egress, want)
	}
	if mc.State == hostapi.Running || mc.State == hostapi.Paused {
		w.must(w.checkEgressInForce(id))
	}
}

// TestEgressAtEveryStart checks the policy after every kind of start. The fake monitors check that it applies before
// the guest runs.
func TestEgressAtEveryStart(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	w.create("a", true)
	w.wantEgress("a", baseEgress)
	got, err := w.mgr.Fork(
		ctx,
		machine.ForkRequest{Parent: "a", Children: []machine.ChildRequest{{ID: "b", Persistent: true}}},
	)
	w.must(err)
	w.must(got[0].Err)
	w.wantEgress("b", baseEgress)

	w.must(w.mgr.SetEgress(ctx, "a", otherEgress))
	w.wantEgress("a", otherEgress)
	w.wantEgress("b", baseEgress) // its own policy
	w.must(w.mgr.Pause(ctx, "b"))
	w.must(w.mgr.SetEgress(ctx, "b", hostapi.Egress{}))
	w.wantEgress("b", hostapi.Egress{})
	w.restart(nil) // adopted
	w.wantEgress("a", otherEgress)
	w.wantEgress("b", hostapi.Egress{})

	w.must(w.mgr.Hibernate(ctx, "a"))
	w.must(w.mgr.SetEgress(ctx, "a", baseEgress))
	w.restart(nil)
	w.wantEgress("a", baseEgress)
	_, err = w.mgr.Wake(ctx, "a")
	w.must(err)
	w.failMonitor("a") // then it boots cold
	w.must(w.mgr.SetEgress(ctx, "a", otherEgress))
	_, err = w.mgr.Wake(ctx, "a")
	w.must(err)
	w.wantEgress("a", otherEgress)
	w.destroyAll("everything")
}

func TestInvalidEgress(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	bad := hostapi.Egress{Allow: []string{"bad"}}
	if _, err := w.mgr.Create(ctx, machine.CreateRequest{ID: "a", Egress: bad}, base, ""); !errors.Is(
		err,
		hostapi.ErrInvalid,
	) {
		t.Errorf("create: got %v, want ErrInvalid", err)
	}
	w.create("a", true)
	if err := w.mgr.SetEgress(ctx, "a", bad); !errors.Is(err, hostapi.ErrInvalid) {
		t.Errorf("change: got %v, want ErrInvalid", err)
	}
	if err := w.mgr.SetEgress(ctx, "none", otherEgress); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("change of a missing machine: got %v, want ErrNotFound", err)
	}
	w.network.failNext(errInjected)
	if err := w.mgr.SetEgress(ctx, "a", otherEgress); !errors.Is(err, errInjected) {
		t.Errorf("change that the network refuses: got %v, want the injected error", err)
	}
	w.wantEgress("a", baseEgress)
	w.network.failNext(errInjected)
	if _, err := w.mgr.Create(ctx, machine.CreateRequest{ID: "b", Egress: baseEgress}, base, ""); !errors.Is(
		err,
		errInjected,
	) {
		t.Errorf("create that the network refuses: got %v, want the injected error", err)
	}
	w.destroyAll("refusals")
}

// TestAdoptionWithoutPolicy checks that a machine fails if its policy cannot be applied again.
func TestAdoptionWithoutPolicy(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.network.failNext(errInjected)
	w.restart(nil)
	w.wantState("a", hostapi.Failed)
	_, err := w.mgr.Wake(t.Context(), "a")
	w.must(err)
	w.wantEgress("a", baseEgress)
	w.destroyAll("adoption")
}

// TestRecordOfNoEgress reads an old record, which allows everything or nothing.
func TestRecordOfNoEgress(t *testing.T) {
	w := newFixture(t)
	w.create("a", true)
	w.must(w.mgr.Hibernate(t.Context(), "a"))
	w.stop()
	file := filepath.Join(w.dir, "machines", "a", "machine.json")
	data, err := os.ReadFile(file)
	w.must(err)
	w.must(os.WriteFile(file, replaceEgress(t, data), 0o600))
	w.boot()
	w.wantEgress("a", hostapi.Egress{DenyOthers: true})
	w.destroyAll("old record")
}

func replaceEgress(t *testing.T, data []byte) []byte {
	t.Helper()
	fields := map[string]any{}
	err := json.Unmarshal(data, &fields)
	delete(fields, "egress")
	fields["no_egress"] = true
	out, err2 := json.Marshal(fields)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return out
}
