package schedule_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// Of the schedules in the store, measured are due: each every ten seconds, a tenth of them in each second.
const (
	inStore  = 10_000
	measured = 50
	rounds   = 3 // moments of each
)

// BenchmarkStart measures how much later than its moment a run begins, with 10,000 schedules in the store, over
// simulated sandboxes.
func BenchmarkStart(b *testing.B) {
	db, err := store.Open(b.Context(), store.Config{DSN: storetest.Empty(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	log, boxes := slog.New(slog.DiscardHandler), newBoxes()
	jobs, err := job.New(job.Config{}, db, log)
	if err != nil {
		b.Fatal(err)
	}
	limits := quota.New(quota.Config{Defaults: quota.Defaults(config.Quota{Schedules: inStore})}, db)
	s, err := schedule.New(schedule.Config{}, schedule.Deps{
		Store: db, Jobs: jobs, Sandboxes: boxes, Templates: boxes, Quotas: limits, Log: log,
	})
	if err != nil {
		b.Fatal(err)
	}
	due := make([]api.ScheduleID, 0, measured)
	for i := range inStore {
		cron := fmt.Sprintf("%d %d 1 1 *", i%60, i/60%24)
		if i < measured {
			cron = fmt.Sprintf("%d/10 * * * * *", i%10)
		}
		out, err := s.Create(b.Context(), user, api.CreateScheduleRequest{
			Name: "s" + fmt.Sprint(i), Cron: cron, Target: api.ScheduleTarget{SandboxID: boxes.mine, Command: "ok"},
		})
		if err != nil {
			b.Fatal(err)
		}
		if i < measured {
			due = append(due, out.ID)
		}
	}
	for b.Loop() {
		late := starts(b, s, jobs, due)
		slices.Sort(late)
		for name, at := range map[string]int{"p50": len(late) / 2, "p99": len(late) * 99 / 100, "max": len(late) - 1} {
			b.ReportMetric(float64(late[at].Microseconds())/1000, name+"-ms")
		}
		b.ReportMetric(float64(len(late)), "runs")
	}
}

// starts runs a process until each schedule has had its moments, and returns how late its runs began.
func starts(b *testing.B, s *schedule.Service, jobs *job.Queue, due []api.ScheduleID) (late []time.Duration) {
	b.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.Context(), rounds*10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{jobs.Run, s.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				b.Errorf("Run() = %v", err)
			}
		})
	}
	wg.Wait()
	for _, id := range due {
		runs, err := s.Runs(b.Context(), user, id, 100)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range runs {
			if r.ScheduledFor.After(began) && r.StartedAt != nil { // others were missed
				late = append(late, r.StartedAt.Sub(r.ScheduledFor))
			}
		}
	}
	if len(late) < len(due) {
		b.Fatalf("%d runs of %d schedules began, want at least one of each", len(late), len(due))
	}
	return late
}
