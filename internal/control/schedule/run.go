package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
)

// writeTimeout bounds writing how an attempt ended.
const writeTimeout = 10 * time.Second

// outcome is how an attempt ended.
type outcome struct {
	state          string // success, error or timeout
	exit           *int
	stdout, stderr string
	err            string // why it is no success
}

// errAttempt is the error of a job whose attempt failed; the run says why.
var errAttempt = errors.New("the attempt failed")

// run is the worker of a run.
func (s *Service) run(ctx context.Context, l *job.Lease) error {
	var pay payload
	if err := json.Unmarshal(l.Job().Payload, &pay); err != nil {
		return job.Permanent(err)
	}
	run, err := s.db.Read().ScheduleRun(ctx, pay.Run)
	if err != nil {
		return permanentIf(err, store.ErrNotFound)
	}
	row, err := s.db.Read().Schedule(ctx, run.Schedule)
	if err != nil {
		return permanentIf(err, store.ErrNotFound)
	}
	target, options, err := decode(&row)
	if err != nil {
		return job.Permanent(err)
	}
	if options.Overlap == api.OverlapReplace {
		if err := s.replace(ctx, &run); err != nil {
			return err
		}
	}
	out, err := s.attempt(ctx, &row, &run, target)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return s.record(ctx, l, &run, out)
}

func permanentIf(err, target error) error {
	if errors.Is(err, target) {
		return job.Permanent(err)
	}
	return err
}

// replace cancels the runs of a schedule that are older than one.
func (s *Service) replace(ctx context.Context, run *store.ScheduleRun) error {
	active, err := s.db.Read().ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: run.Schedule, Active: true})
	if err != nil {
		return err
	}
	for i := range active {
		if other := &active[i]; other.ID != run.ID && other.Moment <= run.Moment && other.Created <= run.Created {
			s.cancel(ctx, other)
		}
	}
	return nil
}

// cancel ends a run that has not ended.
func (s *Service) cancel(ctx context.Context, run *store.ScheduleRun) {
	if run.Waiting {
		run.State, run.Waiting, run.Ended = store.RunCanceled, false, store.Micros(time.Now())
		err := s.db.Write(ctx, "schedule cancel", func(ctx context.Context, tx *store.Tx) error {
			return tx.UpdateScheduleRun(ctx, run, "state", "waiting", "ended")
		})
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			s.log.Warn("run of a schedule was not canceled", "run", run.ID, "err", err)
		}
		return
	}
	if _, err := s.jobs.Cancel(ctx, run.ID); err != nil && api.CodeOf(err) != api.NotFound {
		s.log.Warn("run of a schedule was not canceled", "run", run.ID, "err", err)
	}
}

// as returns the principal that acts for a user's schedule.
func as(row *store.Schedule) auth.Principal {
	return auth.Principal{Workspace: api.Workspace(row.Workspace)}
}

// facts are what a run tells its command or the receiver of its request.
func facts(run *store.ScheduleRun, attempt int) map[string]string {
	return map[string]string{
		"RUN_ID": run.ID, "SCHEDULE_ID": run.Schedule, "ATTEMPT": fmt.Sprint(attempt),
		"SCHEDULED_FOR": store.Time(run.Moment).UTC().Format(time.RFC3339),
	}
}

// attempt makes one attempt of a run. Its error is one of this host, after which the attempt is made again.
func (s *Service) attempt(
	ctx context.Context,
	row *store.Schedule,
	run *store.ScheduleRun,
	target api.ScheduleTarget,
) (outcome, error) {
	limit := time.Duration(target.TimeoutSeconds) * time.Second
	if limit == 0 {
		limit = 5 * time.Minute
	}
	switch {
	case target.URL != "":
		return s.requests.send(ctx, target, row.Secret, facts(run, run.Attempt), limit), nil
	case target.Template != "":
		return s.inNewSandbox(ctx, row, run, target, limit)
	case target.AppID != "":
		return s.inApp(ctx, as(row), run, target, limit), nil
	}
	return s.inSandbox(ctx, as(row), run, target, limit), nil
}

// record writes how an attempt ended: the run ends, or another attempt follows.
func (s *Service) record(ctx context.Context, l *job.Lease, run *store.ScheduleRun, out outcome) error {
	again := out.state != store.RunSuccess && l.Job().Attempts < l.Job().MaxAttempts
	run.ExitCode, run.Stdout, run.Stderr, run.Error = out.exit, text(out.stdout), text(out.stderr), text(out.err)
	columns := []string{"exit_code", "stdout", "stderr", "error", "sandbox"}
	if !again {
		run.State, run.Ended = out.state, store.Micros(time.Now())
		columns = append(columns, "state", "ended")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	err := s.db.Write(ctx, "schedule run", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateScheduleRun(ctx, run, columns...); err != nil {
			return ignore(err, store.ErrNotFound) // the schedule was deleted
		}
		switch {
		case again:
			return l.Check(ctx, tx)
		case out.state == store.RunSuccess:
			if err := l.Complete(ctx, tx, nil); err != nil {
				return err
			}
		default:
			if err := l.Fail(ctx, tx, errAttempt); err != nil {
				return err
			}
		}
		return s.promote(ctx, tx, run.Schedule)
	})
	switch {
	case err != nil:
		return err
	case again:
		return errAttempt
	}
	s.jobs.Notify()
	return nil
}

// text makes valid UTF-8 without zero bytes, which no store takes.
func text(s string) string { return strings.ReplaceAll(strings.ToValidUTF8(s, "�"), "\x00", "�") }

// jobChanged keeps a run in step with its job.
func (s *Service) jobChanged(ctx context.Context, tx *store.Tx, j job.Job) error {
	run, err := tx.ScheduleRun(ctx, j.ID)
	if err != nil {
		return ignore(err, store.ErrNotFound)
	}
	columns := []string{"state"}
	switch j.State {
	case job.Queued:
		run.State = store.RunQueued
	case job.Running:
		run.State, run.Attempt = store.RunRunning, j.Attempts
		columns = append(columns, "attempt")
		if run.Started == 0 {
			run.Started = store.Micros(j.Started)
			columns = append(columns, "started")
		}
	case job.Done:
		run.State = store.RunSuccess
	case job.Failed:
		run.State = store.RunError
	case job.Cancelled:
		run.State = store.RunCanceled
	}
	if j.State.Ended() {
		run.Ended = store.Micros(time.Now())
		if run.Error == "" {
			run.Error = j.Error
		}
		columns = append(columns, "ended", "error")
	}
	if err := tx.UpdateScheduleRun(ctx, &run, columns...); err != nil {
		return ignore(err, store.ErrNotFound)
	}
	if !j.State.Ended() {
		return nil
	}
	return s.promote(ctx, tx, run.Schedule)
}
