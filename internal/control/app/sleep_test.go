package app_test

import (
	"context"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// TestRequestEndsSleep lets a request come while a machine of the app is being hibernated: the app is not shown as
// hibernated, the hibernation ends at once, and the machine continues.
func TestRequestEndsSleep(t *testing.T) {
	w := newFixture(t)
	a := w.made(func(r *api.CreateAppRequest) { r.IdleTimeoutSeconds = 1 })
	w.live(a, "one")
	var shown api.App
	woken := make(chan error, 1)
	w.host.SetHook(hosttest.Hook(func(ctx context.Context, op, _ string, after bool) error {
		if op != "hibernate" || after {
			return nil
		}
		shown = w.get(a)
		go func() { woken <- w.Wake(context.WithoutCancel(ctx), a.ID, 1) }()
		<-ctx.Done()
		return context.Cause(ctx)
	}))
	before := len(w.host.Calls())
	w.until("sleep", func() bool {
		w.must(w.Reconcile(t.Context()))
		return shown.ID != ""
	})
	w.must(<-woken)
	w.host.SetHook(nil)
	if shown.Status != api.AppRunning || shown.Transition != api.AppSleeping {
		t.Errorf("during the hibernation it was %s, %s", shown.Status, shown.Transition)
	}
	if now := w.get(a); now.Status != api.AppRunning || now.Transition != "" || now.Replicas != 1 {
		t.Errorf("afterwards it is %+v", now)
	}
	for _, op := range w.calls(before) {
		if op == "wake" || op == "create" {
			t.Errorf("%s: the machine did not continue", op)
		}
	}
	for _, m := range w.host.Machines() {
		if m.State != hostapi.Running {
			t.Errorf("machine %s is %v", m.ID, m.State)
		}
	}
}

// TestSleepEndsBeforeRequest is TestRequestEndsSleep with a hibernation that cannot be ended any more: the machine is
// woken.
func TestSleepEndsBeforeRequest(t *testing.T) {
	w := newFixture(t)
	a := w.made(func(r *api.CreateAppRequest) { r.IdleTimeoutSeconds = 1 })
	w.live(a, "one")
	woken := make(chan error, 1)
	came := false
	w.host.SetHook(hosttest.Hook(func(ctx context.Context, op, _ string, after bool) error {
		if op == "hibernate" && after {
			came = true
			go func() { woken <- w.Wake(context.WithoutCancel(ctx), a.ID, 1) }()
			<-ctx.Done()
		}
		return nil
	}))
	w.until("sleep", func() bool {
		w.must(w.Reconcile(t.Context()))
		return came
	})
	w.must(<-woken)
	w.host.SetHook(nil)
	if now := w.get(a); now.Status != api.AppRunning || now.Replicas != 1 {
		t.Errorf("%+v", now)
	}
}

// TestWakingIsShown looks at an app while its machine is being woken.
func TestWakingIsShown(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	w.live(a, "one")
	w.asleep(a)
	var shown api.App
	w.host.SetHook(hosttest.Hook(func(_ context.Context, op, _ string, after bool) error {
		if op == "wake" && !after {
			shown = w.get(a)
		}
		return nil
	}))
	w.must(w.Wake(t.Context(), a.ID, 1))
	w.host.SetHook(nil)
	if shown.Status != api.AppHibernated || shown.Transition != api.AppWaking {
		t.Errorf("during the wake it was %s, %q", shown.Status, shown.Transition)
	}
	if now := w.get(a); now.Status != api.AppRunning || now.Transition != "" {
		t.Errorf("afterwards it is %s, %q", now.Status, now.Transition)
	}
}
