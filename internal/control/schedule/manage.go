package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/cron"
)

// upcoming is how many moments of a schedule are shown.
const upcoming = 5

// Create adds a schedule.
func (s *Service) Create(
	ctx context.Context,
	p auth.Principal,
	req api.CreateScheduleRequest,
) (api.Schedule, error) {
	if p.Workspace == "" {
		return api.Schedule{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := req.Validate(); err != nil {
		return api.Schedule{}, err
	}
	now := time.Now()
	row := store.Schedule{
		ID: string(api.NewScheduleID()), Workspace: string(p.Workspace), Name: req.Name, Paused: req.Paused,
		Secret: strings.ToLower(rand.Text()), Created: store.Micros(now), Changed: store.Micros(now),
	}
	if err := s.set(ctx, p, &row, req.Cron, req.Target, req.Options, now); err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	err := s.db.Write(ctx, "schedule create", func(ctx context.Context, tx *store.Tx) error {
		one := quota.Amount{Kind: quota.Schedules, N: 1}
		if err := s.quotas.Admit(ctx, tx, p.Workspace, one); err != nil {
			return err
		}
		return tx.InsertSchedule(ctx, &row)
	})
	if err != nil {
		return api.Schedule{}, taken(err, row.Name)
	}
	s.poke()
	return s.view(ctx, &row)
}

// set sets what a user says of a schedule, after checking it.
func (s *Service) set(
	ctx context.Context,
	p auth.Principal,
	row *store.Schedule,
	expression string,
	target api.ScheduleTarget,
	options api.ScheduleOptions,
	now time.Time,
) error {
	x, err := cron.Parse(expression, options.Timezone)
	if err != nil {
		field := "cron"
		if _, zone := cron.Parse("@daily", options.Timezone); zone != nil {
			field = "options.timezone"
		}
		return api.Errorf(api.Invalid, "%s: %v", field, err).With("field", field)
	}
	if err := s.checkTarget(ctx, p, target); err != nil {
		return err
	}
	row.Cron, row.Next = x.String(), 0
	if !row.Paused {
		row.Next = store.Micros(x.Next(now))
	}
	row.Target, err = encode(target)
	if err != nil {
		return err
	}
	row.Options, err = encode(options)
	return err
}

// checkTarget refuses a target that does not exist.
func (s *Service) checkTarget(ctx context.Context, p auth.Principal, t api.ScheduleTarget) error {
	var err error
	field := "target.sandbox_id"
	switch {
	case t.FunctionID != "" && s.functions == nil:
		return api.Errorf(api.Unsupported, "target.function_id: this server has no functions").
			With("field", "target.function_id")
	case t.FunctionID != "":
		field = "target.function_id"
		err = s.functions.Check(ctx, p, t.FunctionID)
	case t.AppID != "" && s.apps == nil:
		return api.Errorf(api.Unsupported, "target.app_id: this server has no apps").With("field", "target.app_id")
	case t.AppID != "":
		field = "target.app_id"
		_, err = s.apps.Get(ctx, p, string(t.AppID))
	case t.SandboxID != "":
		_, err = s.boxes.Get(ctx, p, t.SandboxID)
	case t.Template != "":
		field = "target.template"
		_, err = s.templates.Resolve(ctx, p, t.Template)
	}
	if code := api.CodeOf(err); err != nil && (code == api.NotFound || code == api.Gone) {
		return api.Wrap(api.Invalid, err, field+": "+err.Error()).With("field", field)
	}
	return err
}

func taken(err error, name string) error {
	if errors.Is(err, store.ErrExists) {
		return api.Errorf(api.Conflict, "name: schedule %.64q exists: choose another name", name).With("field", "name")
	}
	return api.AsError(err)
}

// Get returns a schedule.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.ScheduleID) (api.Schedule, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	return s.view(ctx, &row)
}

// List returns the schedules of the caller's workspace by name.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Schedule, error) {
	if p.Workspace == "" {
		return nil, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	rows, err := s.db.Read().Schedules(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.Schedule, 0, len(rows))
	for i := range rows {
		v, err := s.view(ctx, &rows[i])
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Update changes a schedule. Its next moment is the first one from now on.
func (s *Service) Update(
	ctx context.Context,
	p auth.Principal,
	id api.ScheduleID,
	req api.UpdateScheduleRequest,
) (api.Schedule, error) {
	if err := req.Validate(); err != nil {
		return api.Schedule{}, err
	}
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	target, before, err := decode(&row)
	if err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	options := before
	if req.Target != nil {
		target = *req.Target
	}
	if req.Options != nil {
		options = *req.Options
	}
	was, now := row, time.Now()
	if req.Name != nil {
		row.Name = *req.Name
	}
	if req.Paused != nil {
		row.Paused = *req.Paused
	}
	expression := row.Cron
	if req.Cron != nil {
		expression = *req.Cron
	}
	if err := s.set(ctx, p, &row, expression, target, options, now); err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	same := row.Cron == was.Cron && options.Timezone == before.Timezone && row.Paused == was.Paused
	row.Changed = max(store.Micros(now), was.Changed+1)
	err = s.db.Write(ctx, "schedule update", func(ctx context.Context, tx *store.Tx) error {
		if same { // an interval goes on, and a moment that is due is not lost
			current, err := tx.Schedule(ctx, row.ID)
			if err != nil {
				return err
			}
			row.Next = current.Next
		}
		return tx.UpdateSchedule(ctx, &row, was.Changed)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Schedule{}, api.Errorf(api.Conflict, "schedule %s was changed meanwhile: try again", id)
	}
	if err != nil {
		return api.Schedule{}, taken(err, row.Name)
	}
	s.poke()
	return s.view(ctx, &row)
}

// Delete removes a schedule and its runs. Those that have not ended are canceled.
func (s *Service) Delete(ctx context.Context, p auth.Principal, id api.ScheduleID) error {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.AsError(err)
	}
	active, err := s.db.Read().ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: row.ID, Active: true})
	if err != nil {
		return api.AsError(err)
	}
	target, _, err := decode(&row)
	if err != nil {
		return api.AsError(err)
	}
	var stopped []string
	err = s.db.Write(ctx, "schedule delete", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeleteSchedule(ctx, row.ID); err != nil || target.FunctionID == "" || s.functions == nil {
			return err
		}
		stopped = nil
		return s.cancelFunctions(ctx, tx, active, target.FunctionID, &stopped)
	})
	if err != nil {
		return api.AsError(err)
	}
	s.interrupt(stopped)
	if target.FunctionID != "" {
		return nil
	}
	for i := range active {
		s.cancel(ctx, &active[i])
	}
	return nil
}

// Trigger adds a run now.
func (s *Service) Trigger(ctx context.Context, p auth.Principal, id api.ScheduleID) (api.ScheduleRun, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.ScheduleRun{}, api.AsError(err)
	}
	var run store.ScheduleRun
	var replaced []string
	err = s.db.Write(ctx, "schedule trigger", func(ctx context.Context, tx *store.Tx) (err error) {
		replaced = nil
		if row, err = tx.LockSchedule(ctx, row.ID); errors.Is(err, store.ErrNotFound) {
			return notFound(string(id))
		}
		if err != nil {
			return err
		}
		run, err = s.add(ctx, tx, &row, time.Now(), true, &replaced)
		return err
	})
	if err != nil {
		return api.ScheduleRun{}, api.AsError(err)
	}
	s.notify()
	s.interrupt(replaced)
	return viewRun(&row, &run), nil
}

// Runs returns the runs of a schedule, newest first. limit is at most 1000.
func (s *Service) Runs(
	ctx context.Context,
	p auth.Principal,
	id api.ScheduleID,
	limit int,
) ([]api.ScheduleRun, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return nil, api.AsError(err)
	}
	rows, err := s.db.Read().ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: row.ID, Limit: limit})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.ScheduleRun, 0, len(rows))
	for i := range rows {
		out = append(out, viewRun(&row, &rows[i]))
	}
	return out, nil
}

func encode(v any) (string, error) {
	data, err := json.Marshal(v)
	return string(data), err
}

func decode(row *store.Schedule) (t api.ScheduleTarget, o api.ScheduleOptions, err error) {
	if err = errors.Join(json.Unmarshal([]byte(row.Target), &t), json.Unmarshal([]byte(row.Options), &o)); err != nil {
		err = fmt.Errorf("schedule %s cannot be read: %w", row.ID, err)
	}
	o.Catchup = cmp.Or(o.Catchup, api.CatchupLatest)
	o.Overlap = cmp.Or(o.Overlap, api.OverlapAllow)
	o.MaxCatchup, o.MaxAttempts = cmp.Or(o.MaxCatchup, 10), cmp.Or(o.MaxAttempts, 1)
	return t, o, err
}

// view returns a schedule as users see it.
func (s *Service) view(ctx context.Context, row *store.Schedule) (api.Schedule, error) {
	target, options, err := decode(row)
	if err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	for name := range target.Env {
		target.Env[name] = api.MaskedValue
	}
	for name := range target.Headers {
		target.Headers[name] = api.MaskedValue
	}
	out := api.Schedule{
		ID: api.ScheduleID(row.ID), Workspace: api.Workspace(row.Workspace), Name: row.Name, Cron: row.Cron,
		Target: target, FunctionID: target.FunctionID, Options: options, Paused: row.Paused, Secret: row.Secret,
		NextRuns: []time.Time{}, CreatedAt: store.Time(row.Created), UpdatedAt: store.Time(row.Changed),
	}
	if row.Next > 0 {
		next := store.Time(row.Next)
		out.NextRunAt = &next
		x, err := cron.Parse(row.Cron, options.Timezone)
		if err != nil {
			return api.Schedule{}, api.AsError(err)
		}
		out.NextRuns = append([]time.Time{next}, x.Upcoming(next, upcoming-1)...)
	}
	last, err := s.db.Read().ScheduleRuns(ctx, store.ScheduleRunQuery{Schedule: row.ID, Limit: 1})
	if err != nil {
		return api.Schedule{}, api.AsError(err)
	}
	if len(last) > 0 {
		at := store.Time(last[0].Moment)
		out.LastRunAt, out.LastStatus = &at, api.RunStatus(last[0].State)
	}
	return out, nil
}

// viewRun returns a run of a schedule as users see it.
func viewRun(of *store.Schedule, row *store.ScheduleRun) api.ScheduleRun {
	out := api.ScheduleRun{
		ID: api.RunID(row.ID), Workspace: api.Workspace(row.Workspace), ScheduleID: api.ScheduleID(row.Schedule),
		SandboxID: api.SandboxID(row.Sandbox), Status: api.RunStatus(row.State), Trigger: "schedule",
		ScheduledFor: store.Time(row.Moment), Attempt: row.Attempt, ExitCode: row.ExitCode, Stdout: row.Stdout,
		Stderr: row.Stderr, Error: row.Error,
	}
	if target, _, err := decode(of); err == nil {
		out.FunctionID = target.FunctionID
	}
	if row.Manual {
		out.Trigger = "manual"
	}
	if row.Started > 0 {
		at := store.Time(row.Started)
		out.StartedAt = &at
	}
	if row.Ended > 0 {
		at := store.Time(row.Ended)
		out.EndedAt = &at
	}
	if row.Started > 0 && row.Ended > 0 {
		out.DurationMS = (row.Ended - row.Started) / 1000
	}
	return out
}
