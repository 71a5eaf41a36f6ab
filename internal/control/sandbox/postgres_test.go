package sandbox_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
)

// TestOnPostgres: the other engine gives the same service.
func TestOnPostgres(t *testing.T) {
	address := storetest.Postgres(t)
	for name, check := range map[string]func(*testing.T, *fixture){
		"life": checkLifecycle, "forks": checkForks, "snapshots": checkSnapshots, "idempotency": checkIdempotency,
		"storm": checkStorm,
		"quota": checkQuotaRace, "suspension": checkSuspension,
		"follow": checkFollowEvents, "isolation": checkIsolation,
	} {
		t.Run(name, func(t *testing.T) { check(t, newFixtureOn(t, address(t))) })
	}
}

// TestTwoProcesses: an idempotency key and an event log are shared by two control planes on one store and
// one host, and neither takes what the other has under way for left behind.
func TestTwoProcesses(t *testing.T) {
	a := newFixtureOn(t, storetest.Postgres(t)(t))
	checkTwoProcesses(t, a)
}

func checkTwoProcesses(t *testing.T, a *fixture) {
	t.Helper()
	b := newFixtureOn(t, a.path)
	b.host.Close()
	b.host = a.host
	b.restart()
	reached, open := a.gate("create")
	defer open()
	req := api.CreateRequest{IdempotencyKey: "k"}
	ids := make(chan api.SandboxID, 2)
	go func() { ids <- a.create(alice, req).ID }()
	<-reached
	go func() { ids <- b.create(alice, req).ID }()
	if err := b.Reconcile(t.Context()); err != nil {
		t.Error(err)
	}
	if page, err := b.List(t.Context(), alice, api.SandboxFilter{}); err != nil || len(page.Sandboxes) != 1 ||
		page.Sandboxes[0].Status != api.Creating {
		t.Errorf("the other process sees %+v, %v; want one that is being created", page, err)
	}
	open()
	first, second := <-ids, <-ids
	if first != second {
		t.Errorf("two processes made %s and %s for one key", first, second)
	}
	a.clean(first)
	if _, err := b.Pause(t.Context(), alice, first); err != nil {
		t.Error(err)
	}
	if got := a.status(alice, first); got != api.Paused {
		t.Errorf("what one process paused is %s for the other", got)
	}
}
