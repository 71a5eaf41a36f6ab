package schedule_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

func TestRuns(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		c := f.create(s, "*/10 * * * * *", "hello", api.ScheduleOptions{})
		if len(c.NextRuns) != 5 || c.NextRuns[0].Second() != 10 || c.NextRunAt.Second() != 10 || c.Secret == "" {
			f.Errorf("schedule = %+v", c)
		}
		after(25 * time.Second)
		runs := f.runs(s, c.ID)
		f.want("runs", states(runs), "10 success, 20 success")
		r := runs[0]
		if r.Stdout != "printed by hello\n" || *r.ExitCode != 0 || r.Attempt != 1 || r.Trigger != "schedule" ||
			r.SandboxID != f.boxes.mine || r.StartedAt == nil || r.EndedAt == nil {
			f.Errorf("run = %+v", r)
		}
		spec := f.boxes.specs[0]
		if spec.User != "user" || spec.Dir != "/work" || spec.Env["PANDASTACK_RUN_ID"] != string(r.ID) ||
			spec.Env["PANDASTACK_ATTEMPT"] != "1" || spec.Env["PANDASTACK_SCHEDULED_FOR"] != "2000-01-01T00:00:10Z" {
			f.Errorf("process = %+v", spec)
		}
		got, err := s.Get(f.Context(), user, c.ID)
		if err != nil || got.LastRunAt.Second() != 20 || got.LastStatus != api.RunSuccess ||
			got.NextRunAt.Second() != 30 {
			f.Errorf("schedule = %+v, %v", got, err)
		}
		stranger := auth.Principal{Workspace: "w2"}
		if _, err := s.Runs(f.Context(), stranger, c.ID, 10); api.CodeOf(err) != api.NotFound {
			f.Errorf("runs of another workspace: %v", err)
		}
	})
}

// TestNewSandbox runs a command in sandboxes of its own, of which none is left, whatever happens.
func TestNewSandbox(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		f.boxes.fails["hello"] = 1
		c, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
			Name: "x", Cron: "0 0 * * *", Target: api.ScheduleTarget{Template: "base", Command: "hello"},
			Options: api.ScheduleOptions{MaxAttempts: 2},
		})
		if err != nil {
			f.Fatal(err)
		}
		run, err := s.Trigger(f.Context(), user, c.ID)
		if err != nil || run.Status != api.RunQueued || run.Trigger != "manual" {
			f.Fatalf("run = %+v, %v", run, err)
		}
		after(time.Minute)
		runs := f.runs(s, c.ID)
		if f.want("runs", states(runs), "0 success"); runs[0].Attempt != 2 {
			f.Errorf("attempt = %d, want 2", runs[0].Attempt)
		}
		if left := f.boxes.others(); len(left) > 0 {
			f.Errorf("sandboxes are left: %v", left)
		}
	})
}

func TestFailures(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		f.boxes.fails["bad"] = 9
		for command, want := range map[string]string{
			"bad":      "error: the command ended with 3",
			"take 10h": "timeout: the command did not end within 5m0s",
		} {
			c := f.create(s, "0 0 * * *", command, api.ScheduleOptions{MaxAttempts: 3})
			if _, err := s.Trigger(f.Context(), user, c.ID); err != nil {
				f.Fatal(err)
			}
			after(20 * time.Minute)
			r := f.runs(s, c.ID)[0]
			f.want(command, string(r.Status)+": "+r.Error, want)
			if r.Attempt != 3 || r.Stdout != "printed by "+command+"\n" {
				f.Errorf("%s: attempt %d, output %q", command, r.Attempt, r.Stdout)
			}
		}
		c := f.create(s, "0 0 * * *", "hello", api.ScheduleOptions{})
		f.boxes.mu.Lock()
		delete(f.boxes.live, f.boxes.mine)
		f.boxes.mu.Unlock()
		if _, err := s.Trigger(f.Context(), user, c.ID); err != nil {
			f.Fatal(err)
		}
		after(time.Minute)
		if r := f.runs(s, c.ID)[0]; r.Status != api.RunError || !strings.Contains(r.Error, "not found") {
			f.Errorf("run in a sandbox that is gone: %s: %s", r.Status, r.Error)
		}
	})
}

func TestOverlap(t *testing.T) {
	for overlap, want := range map[api.Overlap]struct{ began, states string }{
		api.OverlapAllow:   {"take 25s, take 25s, take 25s", "10 success, 20 success, 30 success"},
		api.OverlapForbid:  {"take 25s", "10 success, 20 skipped, 30 skipped"},
		api.OverlapReplace: {"take 25s, take 25s, take 25s", "10 canceled, 20 canceled, 30 success"},
		api.OverlapQueue:   {"take 25s, take 25s, take 25s", "10 success, 20 success, 30 success"},
	} {
		t.Run(string(overlap), func(t *testing.T) {
			test(t, func(f *fixture) {
				s := f.start(f.db)
				c := f.create(s, "*/10 * * * * *", "take 25s", api.ScheduleOptions{Overlap: overlap})
				after(34 * time.Second)
				running := strings.Count(states(f.runs(s, c.ID)), "running")
				if wanted := map[api.Overlap]int{api.OverlapAllow: 3, api.OverlapForbid: 1, api.OverlapReplace: 1,
					api.OverlapQueue: 1}[overlap]; running != wanted {
					f.Errorf("%d commands run at once, want %d", running, wanted)
				}
				pause := true
				if _, err := s.Update(f.Context(), user, c.ID, api.UpdateScheduleRequest{Paused: &pause}); err != nil {
					f.Fatal(err)
				}
				after(5 * time.Minute)
				f.want("commands", f.boxes.began0(), want.began)
				f.want("runs", states(f.runs(s, c.ID)), want.states)
			})
		})
	}
}

// TestCatchup stops the process for some time.
func TestCatchup(t *testing.T) {
	for name, c := range map[string]struct {
		options api.ScheduleOptions
		cron    string
		want    string
	}{
		"skip":   {api.ScheduleOptions{Catchup: api.CatchupSkip}, "0 * * * * *", "60 success, 660 success"},
		"latest": {api.ScheduleOptions{}, "0 * * * * *", "60 success, 600 success, 660 success"},
		"all": {
			api.ScheduleOptions{Catchup: api.CatchupAll, MaxCatchup: 3}, "0 * * * * *",
			"60 success, 480 success, 540 success, 600 success, 660 success",
		},
		"deadline": {
			api.ScheduleOptions{Catchup: api.CatchupAll, StartDeadlineSeconds: 150}, "0 * * * * *",
			"60 success, 540 success, 600 success, 660 success",
		},
		"interval": {api.ScheduleOptions{}, "@every 50s", "50 success, 600 success, 650 success"},
	} {
		t.Run(name, func(t *testing.T) {
			test(t, func(f *fixture) {
				s := f.start(f.db)
				made := f.create(s, c.cron, "hello", c.options)
				after(75 * time.Second)
				s.stop()
				after(565 * time.Second) // 640 s since the clock began
				s = f.start(f.db)
				after(35 * time.Second)
				f.want("runs", states(f.runs(s, made.ID)), c.want)
			})
		})
	}
}

// TestSecondsLate: a process that is busy for some seconds leaves no moment out.
func TestSecondsLate(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		c := f.create(s, "@every 2s", "hello", api.ScheduleOptions{})
		after(3 * time.Second)
		s.stop()
		after(6 * time.Second)
		s = f.start(f.db)
		after(2 * time.Second)
		f.want("runs", states(f.runs(s, c.ID)), "2 success, 4 success, 6 success, 8 success, 10 success")
	})
}

// TestTwoProcesses: each moment has one run although two processes share the store.
func TestTwoProcesses(t *testing.T) {
	test(t, func(f *fixture) {
		one, two := f.start(f.db), f.start(f.open(nil))
		var all []api.Schedule
		for range 10 {
			all = append(all, f.create(one, "*/5 * * * * *", "hello", api.ScheduleOptions{}))
		}
		after(33 * time.Second)
		two.stop()
		after(10 * time.Second)
		for _, c := range all {
			f.want("runs", states(f.runs(one, c.ID)), "5 success, 10 success, 15 success, 20 success, 25 success, "+
				"30 success, 35 success, 40 success")
		}
	})
}

// TestQueueOfRuns has runs that end at the moment of the next one, which another process adds: none waits forever.
func TestQueueOfRuns(t *testing.T) {
	test(t, func(f *fixture) {
		one := f.start(f.db)
		f.start(f.open(nil))
		var all []api.Schedule
		for range 8 {
			all = append(all, f.create(one, "*/2 * * * * *", "take 2s", api.ScheduleOptions{Overlap: api.OverlapQueue}))
		}
		after(41 * time.Second)
		pause := true
		for _, c := range all {
			if _, err := one.Update(f.Context(), user, c.ID, api.UpdateScheduleRequest{Paused: &pause}); err != nil {
				f.Fatal(err)
			}
		}
		after(5 * time.Minute)
		for _, c := range all {
			if got := strings.Count(states(f.runs(one, c.ID)), "success"); got != 20 {
				f.Errorf("%d runs have ended, want 20: %s", got, states(f.runs(one, c.ID)))
			}
		}
	})
}

// TestKilled kills the process after each write, before and after it is committed, and starts another one.
func TestKilled(t *testing.T) {
	kill := errors.New("killed")
	for _, op := range []string{"schedule due", "schedule sandbox", "schedule run", "job claim"} {
		for _, committed := range []bool{false, true} {
			test(t, func(f *fixture) {
				var mu sync.Mutex
				dead, died := false, make(chan struct{})
				db := f.open(func(what string, after bool) error {
					mu.Lock()
					defer mu.Unlock()
					if dead || what == op && after == committed {
						if !dead {
							close(died)
						}
						dead = true
						return kill
					}
					return nil
				})
				s := f.start(f.db)
				c, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
					Name: "x", Cron: "0 * * * * *", Target: api.ScheduleTarget{Template: "base", Command: "hello"},
					Options: api.ScheduleOptions{MaxAttempts: 5},
				})
				if err != nil {
					f.Fatal(err)
				}
				s.stop()
				killed := f.start(db)
				after(65 * time.Second)
				select {
				case <-died:
				default:
					f.Errorf("%q was never written", op)
				}
				killed.stop()
				s = f.start(f.db)
				after(50 * time.Second) // the lease of the job expires
				runs := f.runs(s, c.ID)
				if got := states(runs); got != "60 success" {
					f.Errorf("%q, committed %v: runs = %s (%+v)", op, committed, got, runs)
				}
				if left := f.boxes.others(); len(left) > 0 {
					f.Errorf("%q, committed %v: sandboxes are left: %v", op, committed, left)
				}
			})
		}
	}
}

func TestUpdate(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		c := f.create(s, "@every 10m", "hello", api.ScheduleOptions{})
		after(9 * time.Minute)
		name := "renamed"
		if _, err := s.Update(f.Context(), user, c.ID, api.UpdateScheduleRequest{Name: &name}); err != nil {
			f.Fatal(err)
		}
		after(2 * time.Minute)
		f.want("runs of an interval that was renamed", states(f.runs(s, c.ID)), "600 success")

		pause, resume, text, zone := true, false, "30 3 * * *", api.ScheduleOptions{Timezone: "Europe/Berlin"}
		got, err := s.Update(f.Context(), user, c.ID, api.UpdateScheduleRequest{Paused: &pause})
		if err != nil || got.NextRunAt != nil || len(got.NextRuns) > 0 {
			f.Errorf("paused: %+v, %v", got, err)
		}
		after(time.Hour)
		got, err = s.Update(f.Context(), user, c.ID,
			api.UpdateScheduleRequest{Paused: &resume, Cron: &text, Options: &zone})
		if err != nil || got.NextRunAt.UTC().Format(time.TimeOnly) != "02:30:00" {
			f.Errorf("resumed: %+v, %v", got, err)
		}
		after(time.Hour + 30*time.Minute)
		f.want("runs", states(f.runs(s, c.ID)), "600 success, 9000 success")
	})
}

// TestDelete deletes a schedule while it runs: the command is killed, and its sandbox deleted.
func TestDelete(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		c, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
			Name: "x", Cron: "*/5 * * * * *", Target: api.ScheduleTarget{Template: "base", Command: "take 4m"},
		})
		if err != nil {
			f.Fatal(err)
		}
		after(6 * time.Second)
		if len(f.boxes.others()) != 1 {
			f.Fatalf("sandboxes = %v, want one", f.boxes.others())
		}
		if err := s.Delete(f.Context(), user, c.ID); err != nil {
			f.Fatal(err)
		}
		after(30 * time.Second)
		if left := f.boxes.others(); len(left) > 0 || f.boxes.began0() != "take 4m" {
			f.Errorf("sandboxes %v are left, commands %s", left, f.boxes.began0())
		}
		if _, err := s.Get(f.Context(), user, c.ID); api.CodeOf(err) != api.NotFound {
			f.Errorf("deleted schedule: %v", err)
		}
	})
}

func TestRefused(t *testing.T) {
	test(t, func(f *fixture) {
		s := f.start(f.db)
		mine := api.ScheduleTarget{SandboxID: f.boxes.mine, Command: "hello"}
		for field, change := range map[string]func(r *api.CreateScheduleRequest){
			"cron":              func(r *api.CreateScheduleRequest) { r.Cron = "every day" },
			"name":              func(r *api.CreateScheduleRequest) { r.Name = "" },
			"options.timezone":  func(r *api.CreateScheduleRequest) { r.Options.Timezone = "Mars" },
			"options.overlap":   func(r *api.CreateScheduleRequest) { r.Options.Overlap = "maybe" },
			"options.catchup":   func(r *api.CreateScheduleRequest) { r.Options.Catchup = "maybe" },
			"target":            func(r *api.CreateScheduleRequest) { r.Target.URL = "http://a" },
			"target.command":    func(r *api.CreateScheduleRequest) { r.Target.Command = "" },
			"target.sandbox_id": func(r *api.CreateScheduleRequest) { r.Target.SandboxID = api.NewSandboxID() },
			"target.template": func(r *api.CreateScheduleRequest) {
				r.Target.SandboxID, r.Target.Template = "", "none"
			},
			"target.url": func(r *api.CreateScheduleRequest) { r.Target = api.ScheduleTarget{URL: "ftp://a"} },
			"target.headers": func(r *api.CreateScheduleRequest) {
				r.Target = api.ScheduleTarget{URL: "http://a", Headers: map[string]string{"Host": "b"}}
			},
		} {
			req := api.CreateScheduleRequest{Name: "a", Cron: "@daily", Target: mine}
			change(&req)
			_, err := s.Create(f.Context(), user, req)
			if e := api.AsError(err); err == nil || e.Code != api.Invalid || e.Details["field"] != field {
				f.Errorf("%s: %v", field, err)
			}
		}
		f.create(s, "@daily", "hello", api.ScheduleOptions{})
		_, err := s.Create(f.Context(), user, api.CreateScheduleRequest{Name: "s0", Cron: "@daily", Target: mine})
		if api.CodeOf(err) != api.Conflict {
			f.Errorf("name that is taken: %v", err)
		}
		for range 19 {
			f.create(s, "@daily", "hello", api.ScheduleOptions{})
		}
		_, err = s.Create(f.Context(), user, api.CreateScheduleRequest{Name: "more", Cron: "@daily", Target: mine})
		if api.CodeOf(err) != api.QuotaExceeded {
			f.Errorf("beyond the quota: %v", err)
		}
	})
}
