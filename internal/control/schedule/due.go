package schedule

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/cron"
)

// jobKind is the kind of the jobs of runs. The id of a job is that of its run.
const jobKind = "schedule"

// payload is the payload of a job.
type payload struct {
	Run string `json:"run"`
}

// addDue adds the runs of all schedules whose moment has come, and returns the first moment to come; zero: there is
// none.
func (s *Service) addDue(ctx context.Context) (time.Time, error) {
	for {
		now := time.Now()
		rows, err := s.db.Read().DueSchedules(ctx, store.Micros(now), batch)
		if err != nil {
			return time.Time{}, err
		}
		if len(rows) == 0 {
			next, err := s.db.Read().NextSchedule(ctx)
			if err != nil || next == 0 {
				return time.Time{}, err
			}
			return store.Time(next), nil
		}
		var replaced []string
		err = s.db.Write(ctx, "schedule due", func(ctx context.Context, tx *store.Tx) error {
			replaced = nil
			for i := range rows {
				if err := s.advance(ctx, tx, &rows[i], now, &replaced); err != nil {
					return fmt.Errorf("schedule %s: %w", rows[i].ID, err)
				}
			}
			return nil
		})
		if err != nil {
			return time.Time{}, err
		}
		s.notify()
		s.interrupt(replaced)
	}
}

// advance adds the runs of a schedule that is due and sets its next moment. It does nothing if another process has.
// Runs of functions that were replaced are added to replaced.
func (s *Service) advance(
	ctx context.Context,
	tx *store.Tx,
	row *store.Schedule,
	now time.Time,
	replaced *[]string,
) error {
	_, options, err := decode(row)
	if err != nil {
		return err
	}
	x, err := cron.Parse(row.Cron, options.Timezone)
	if err != nil { // this program knows fewer zones than the one that wrote the row
		s.log.Error("schedule does not run: its expression cannot be read", "schedule", row.ID, "err", err)
		return ignore(tx.AdvanceSchedule(ctx, row.ID, row.Next, 0), store.ErrNotFound)
	}
	moments, next := due(x, store.Time(row.Next), now, options)
	var at int64
	if !next.IsZero() {
		at = store.Micros(next)
	}
	err = tx.AdvanceSchedule(ctx, row.ID, row.Next, at)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range moments {
		if _, err := s.add(ctx, tx, row, m, false, replaced); err != nil {
			return err
		}
	}
	return nil
}

func ignore(err, target error) error {
	if errors.Is(err, target) {
		return nil
	}
	return err
}

// due returns the moments from first to now that get a run, and the next moment; zero: there is none.
func due(x cron.Expression, first, now time.Time, o api.ScheduleOptions) (moments []time.Time, next time.Time) {
	// Of those that were noticed in time none is left out: there is at most one for each second.
	n := int(lateness/time.Second) + 1
	if o.Catchup == api.CatchupAll {
		n += o.MaxCatchup
	}
	all := x.Last(first, now, n)
	if len(all) == 0 { // the clock was set back since the schedule was read
		return nil, first
	}
	next = x.Next(all[len(all)-1])
	begin := 0
	for begin < len(all) && now.Sub(all[begin]) > lateness {
		begin++
	}
	switch missed := begin; o.Catchup {
	case api.CatchupLatest:
		if begin == len(all) {
			begin--
		}
	case api.CatchupAll:
		begin -= min(missed, o.MaxCatchup)
	}
	for _, at := range all[begin:] {
		if o.StartDeadlineSeconds > 0 && now.Sub(at) > time.Duration(o.StartDeadlineSeconds)*time.Second {
			continue
		}
		moments = append(moments, at)
	}
	return moments, next
}

// add adds a run of a schedule for a moment, with its job unless it waits for another run or is skipped.
func (s *Service) add(
	ctx context.Context,
	tx *store.Tx,
	row *store.Schedule,
	moment time.Time,
	manual bool,
	replaced *[]string,
) (store.ScheduleRun, error) {
	target, options, err := decode(row)
	if err != nil {
		return store.ScheduleRun{}, err
	}
	run := store.ScheduleRun{
		ID: string(api.NewRunID()), Schedule: row.ID, Workspace: row.Workspace, Moment: store.Micros(moment),
		Manual: manual, State: store.RunQueued, Created: store.Micros(time.Now()),
	}
	if options.Overlap == api.OverlapForbid || options.Overlap == api.OverlapQueue {
		active, err := tx.ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: row.ID, Active: true, Limit: maxWait})
		if err != nil {
			return run, err
		}
		switch {
		case len(active) == 0:
		case options.Overlap == api.OverlapForbid:
			run.State, run.Ended = store.RunSkipped, run.Created
			run.Error = "run " + active[0].ID + " had not ended"
		case len(active) == maxWait:
			run.State, run.Ended = store.RunSkipped, run.Created
			run.Error = fmt.Sprintf("%d runs had not ended", maxWait)
		default:
			run.Waiting = true
		}
	}
	err = tx.InsertScheduleRun(ctx, &run)
	if errors.Is(err, store.ErrExists) { // the expression was changed back to one with this moment
		return run, nil
	}
	if err != nil {
		return run, err
	}
	if err := tx.TrimScheduleRuns(ctx, row.ID, keepRuns); err != nil {
		return run, err
	}
	if run.Waiting || run.Ended > 0 {
		return run, nil
	}
	if target.FunctionID != "" && options.Overlap == api.OverlapReplace {
		if err := s.replaceFunction(ctx, tx, &run, target.FunctionID, replaced); err != nil {
			return run, err
		}
	}
	return run, s.enqueue(ctx, tx, &run, target, options)
}

// enqueue adds the job of a run, or its invocation.
func (s *Service) enqueue(
	ctx context.Context,
	tx *store.Tx,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
	options api.ScheduleOptions,
) error {
	begin := store.Time(run.Moment)
	if !run.Manual {
		begin = begin.Add(jitter(run, time.Duration(options.JitterSeconds)*time.Second))
	}
	if target.FunctionID != "" {
		return s.enqueueFunction(ctx, tx, run, target, options, begin)
	}
	_, _, err := s.jobs.EnqueueTx(ctx, tx, job.Spec{
		ID: run.ID, Kind: jobKind, Key: run.ID, Owner: OwnerKind + "/" + run.Schedule,
		Workspace: api.Workspace(run.Workspace), Payload: payload{run.ID}, RunAfter: begin,
		MaxAttempts: options.MaxAttempts,
	})
	return err
}

// jitter returns a time below a limit. It differs between schedules and moments, and not between attempts.
func jitter(run *store.ScheduleRun, limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d", run.Schedule, run.Moment) // never fails
	return time.Duration(h.Sum64() % uint64(limit))
}

// promote enqueues the run of a schedule that has waited longest, if no other one of its runs is under way.
func (s *Service) promote(ctx context.Context, tx *store.Tx, schedule string) error {
	row, err := tx.Schedule(ctx, schedule)
	if err != nil {
		return ignore(err, store.ErrNotFound)
	}
	target, options, err := decode(&row)
	if err != nil {
		return err
	}
	if options.Overlap == api.OverlapQueue { // a run that is being added may wait for the one that ends here
		if _, err := tx.LockSchedule(ctx, schedule); err != nil {
			return ignore(err, store.ErrNotFound)
		}
	}
	active, err := tx.ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: schedule, Active: true, Oldest: true})
	if err != nil {
		return err
	}
	for i := range active {
		if !active[i].Waiting {
			return nil
		}
	}
	if len(active) == 0 {
		return nil
	}
	run := active[0]
	run.Waiting = false
	if err := tx.UpdateScheduleRun(ctx, &run, "waiting"); err != nil {
		return err
	}
	return s.enqueue(ctx, tx, &run, target, options)
}
