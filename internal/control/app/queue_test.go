package app_test

import (
	"context"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/store"
)

// TestSweepSparesDeployment looks for what no row names while a deployment makes its machines: it finds none of them.
func TestSweepSparesDeployment(t *testing.T) {
	for _, stage := range []string{"build", "capture"} {
		t.Run(stage, func(t *testing.T) {
			w := newFixture(t, func(w *fixture) { w.cfg.Rehearse = false })
			a := w.made()
			w.live(a, "one")
			var steps int
			swept, reached := make(chan struct{}), make(chan struct{})
			w.builder.steps = func() error {
				if steps++; steps == 2 && stage == "build" { // its machine is there
					close(reached)
					<-swept
				}
				return nil
			}
			var work sync.WaitGroup
			var two api.Deployment
			w.listing = func() {
				var err error
				two, err = w.Deploy(t.Context(), alice, "site", api.DeployRequest{GitRef: "two"})
				w.must(err)
				work.Go(func() {
					if err := w.Reconcile(t.Context()); err != nil {
						t.Error(err)
					}
				})
				if stage == "build" {
					<-reached
					return
				}
				w.until("capture", func() bool { // it is not live meanwhile: the sweep holds the lock
					d, err := w.db.Read().Deployment(t.Context(), string(two.ID))
					return err == nil && d.Ready != ""
				})
			}
			w.must(w.Reconcile(t.Context()))
			close(swept)
			work.Wait()
			if d := w.deployment(a, two.ID); d.Status != api.DeploymentLive {
				t.Fatalf("%s: %s", d.Status, d.Error)
			}
			if ready := w.ready(a); len(ready) != 1 || w.read(a, ready[0].Sandbox, "/srv/") != "version two" {
				t.Errorf("replicas %+v", ready)
			}
			w.must(w.Reconcile(t.Context()))
			w.whole("deployed")
		})
	}
}

// TestSupersededAtStart supersedes a deployment when work on it begins: the newer one follows at once.
func TestSupersededAtStart(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	one, err := w.Deploy(t.Context(), alice, "site", api.DeployRequest{GitRef: "one"})
	w.must(err)
	var two api.Deployment
	var once sync.Once
	w.fault = func(op string, committed bool) error {
		if op == "app deployment begin" && !committed {
			once.Do(func() {
				two, err = w.Deploy(t.Context(), alice, "site", api.DeployRequest{GitRef: "two"})
				w.must(err)
			})
		}
		return nil
	}
	w.must(w.Reconcile(t.Context()))
	if s := w.deployment(a, one.ID).Status; s != api.DeploymentSuperseded {
		t.Errorf("the first is %s", s)
	}
	if s := w.deployment(a, two.ID).Status; s != api.DeploymentLive {
		t.Errorf("the second is %s", s)
	}
}

// TestDeployBesideRollback deploys while a rollback holds the deployments, and the look at all apps finds them held:
// the deployment begins when the rollback has ended.
func TestDeployBesideRollback(t *testing.T) {
	w := newFixture(t)
	a := w.made()
	w.builder.result = appspec.Result{Static: &appspec.Static{Dir: "/app/dist", Files: "x"}}
	w.live(a, "one")
	w.live(a, "two")
	var three api.Deployment
	var once sync.Once
	w.Watch(func(_ context.Context, _ store.App, d store.Deployment) {
		if d.State != string(api.DeploymentLive) {
			return
		}
		once.Do(func() {
			var err error
			three, err = w.Deploy(t.Context(), alice, "site", api.DeployRequest{GitRef: "three"})
			w.must(err)
			w.until("look", func() bool { return !w.Poked() })
		})
	})
	w.run()
	_, err := w.Rollback(t.Context(), alice, "site", api.RollbackRequest{})
	w.must(err)
	w.until("deployment", func() bool { return w.deployment(a, three.ID).Status == api.DeploymentLive })
}
