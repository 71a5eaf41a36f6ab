package schedule_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// apps are one app of the user, whose commands run in guests of boxes.
type apps struct {
	boxes *boxes
	id    api.AppID

	mu    sync.Mutex
	err   error // of the next commands
	asked []api.AppRunRequest
	open  int // machines that have not ended
}

func (a *apps) Get(_ context.Context, p auth.Principal, app string) (api.App, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if app != string(a.id) || p.Workspace != user.Workspace {
		return api.App{}, api.Errorf(api.NotFound, "app %s not found", app)
	}
	return api.App{ID: a.id, Name: "shop"}, nil
}

func (a *apps) RunCommand(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.AppRunRequest,
) (guestapi.Guest, api.ExecRequest, func(), error) {
	if _, err := a.Get(ctx, p, app); err != nil {
		return nil, api.ExecRequest{}, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return nil, api.ExecRequest{}, nil, a.err
	}
	a.asked, a.open = append(a.asked, req), a.open+1
	command := api.ExecRequest{User: "web", Cwd: "/app", Env: map[string]string{"A": "app", "B": "app"}}
	end := sync.OnceFunc(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.open--
	})
	return &guest{boxes: a.boxes, ends: map[uint32]func(){}}, command, end, nil
}

// machines says how many machines have not ended, and what was asked for.
func (a *apps) machines() (int, []api.AppRunRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open, slices.Clone(a.asked)
}

// last returns the last command that was started.
func (b *boxes) last() guestapi.ProcessSpec {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.specs[len(b.specs)-1]
}

// failOnce makes the next attempt of a command fail.
func (b *boxes) failOnce(command string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails[command] = 1
}

func (a *apps) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// TestApp runs a command of an app: with the variables of the app, in a machine that ends with the command.
func TestApp(t *testing.T) {
	test(t, func(f *fixture) {
		f.apps = &apps{boxes: f.boxes, id: api.AppID("app" + strings.Repeat("a", 20))}
		s := f.start(f.db)
		req := api.CreateScheduleRequest{
			Name: "nightly", Cron: "0 * * * * *",
			Options: api.ScheduleOptions{MaxAttempts: 2, Overlap: api.OverlapForbid},
			Target: api.ScheduleTarget{
				AppID: f.apps.id, Command: "migrate", TimeoutSeconds: 90, Env: map[string]string{"B": "target"},
			},
		}
		c, err := s.Create(f.Context(), user, req)
		if err != nil {
			f.Fatal(err)
		}
		f.boxes.failOnce("migrate")
		after(80 * time.Second)
		runs := f.runs(s, c.ID)
		f.want("runs", states(runs), "60 success")
		if r := runs[0]; r.Attempt != 2 || r.Stdout != "printed by migrate\n" {
			f.Errorf("run = %+v", r)
		}
		spec := f.boxes.last()
		f.want("where", spec.User+" "+spec.Dir+" "+spec.Timeout.String(), "web /app 1m30s")
		f.want("variables", spec.Env["A"]+" "+spec.Env["B"]+" "+spec.Env["PANDASTACK_ATTEMPT"], "app target 2")
		f.apps.fail(api.Errorf(api.WrongState, "app shop has no live deployment: deploy it first"))
		after(80 * time.Second)
		if r := f.runs(s, c.ID)[1]; r.Status != api.RunError || !strings.Contains(r.Error, "no live deployment") {
			f.Errorf("run of an app that is not deployed: %s: %s", r.Status, r.Error)
		}
		if open, asked := f.apps.machines(); open != 0 || len(asked) != 2 || asked[0].TimeoutSeconds != 90 {
			f.Errorf("%d machines are left of %+v", open, asked)
		}
		f.apps.fail(nil)
		took := "take 5m"
		c, err = s.Update(f.Context(), user, c.ID, api.UpdateScheduleRequest{
			Target:  &api.ScheduleTarget{AppID: f.apps.id, Command: took, TimeoutSeconds: 30},
			Options: &api.ScheduleOptions{}, Paused: new(true),
		})
		if err != nil {
			f.Fatal(err)
		}
		run, err := s.Trigger(f.Context(), user, c.ID)
		if err != nil {
			f.Fatal(err)
		}
		after(time.Second)
		if open, _ := f.apps.machines(); open != 1 {
			f.Errorf("%d machines during a command", open)
		}
		after(30 * time.Second)
		for _, r := range f.runs(s, c.ID) {
			if r.ID == run.ID && r.Status != api.RunTimeout {
				f.Errorf("a command that takes too long: %s: %s", r.Status, r.Error)
			}
		}
		if open, _ := f.apps.machines(); open != 0 {
			f.Errorf("%d machines are left after a timeout", open)
		}
	})
}

// TestAppRefused: a schedule names an app of the workspace.
func TestAppRefused(t *testing.T) {
	test(t, func(f *fixture) {
		target := api.ScheduleTarget{AppID: api.AppID("app" + strings.Repeat("b", 20)), Command: "x"}
		for _, has := range []*apps{nil, {boxes: f.boxes, id: api.AppID("app" + strings.Repeat("a", 20))}} {
			f.apps = has
			s := f.start(f.db)
			_, err := s.Create(f.Context(), user, api.CreateScheduleRequest{Name: "a", Cron: "@daily", Target: target})
			if e := api.AsError(err); err == nil || e.Details["field"] != "target.app_id" {
				f.Errorf("apps %v: created with %v", has, err)
			}
			s.stop()
		}
	})
}
