package build

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/store"
)

// jobKind is the kind of the jobs that run builds. The job of a build has the build's id.
const jobKind = "build"

// errRestarted is the error of a build whose process ended in each of its attempts.
var errRestarted = api.Errorf(
	api.Unavailable,
	"the node was restarted in the middle of the build too often: try it again",
)

// worker returns the worker that runs builds.
func (s *Service) worker() job.Worker {
	return job.Worker{
		Kind:         jobKind,
		Run:          s.execute,
		Changed:      s.jobChanged,
		Concurrency:  s.cfg.Parallel,
		PerWorkspace: s.cfg.PerWorkspace,
		MaxAttempts:  s.cfg.MaxAttempts,
		Abandoned:    errRestarted,
	}
}

// enqueueJob adds the job of a build, in the transaction that writes the build's row.
func (s *Service) enqueueJob(ctx context.Context, tx *store.Tx, row store.Build, attempts int) error {
	_, _, err := s.jobs.EnqueueTx(ctx, tx, job.Spec{
		ID: row.ID, Kind: jobKind, Owner: jobKind + "/" + row.ID, Workspace: api.Workspace(row.Workspace),
		RunAfter: store.Time(row.Created), Attempts: attempts,
	})
	return err
}

// jobChanged keeps the row of a build in step with its job.
func (s *Service) jobChanged(ctx context.Context, tx *store.Tx, j job.Job) error {
	row := store.Build{ID: j.ID, Attempt: j.Attempts}
	columns := []string{"state", "attempt"}
	switch j.State {
	case job.Queued:
		row.State = stateQueued
		columns = append(columns, "owner", "step", "done", "cached")
	case job.Running:
		row.State, row.Owner, row.Started = stateRunning, j.LeaseOwner, store.Micros(j.Started)
		columns = append(columns, "owner", "started")
	case job.Failed, job.Cancelled:
		row.State, row.Error, row.Code, row.Ended = stateFailed, j.Error, string(j.Code), store.Micros(j.EndedAt)
		if j.State == job.Cancelled {
			row.Error = errCancelled.Message
		}
		columns = append(columns, "error", "code", "ended")
	default:
		return nil // the transaction of the build has written its own end
	}
	err := tx.UpdateBuild(ctx, &row, store.ActiveBuildStates, columns...)
	if errors.Is(err, store.ErrNotFound) {
		return nil // the build has ended or was removed; execute ends the job
	}
	return err
}

// adopt enqueues jobs for the builds that have none: a version of this program without a job queue began them.
// Builds that were under way are queued again, or fail if that has happened too often.
func (s *Service) adopt(ctx context.Context) error {
	rows, err := s.db.Read().Builds(ctx, store.BuildQuery{States: store.ActiveBuildStates})
	if err != nil {
		return err
	}
	for _, row := range rows {
		_, err := s.jobs.Get(ctx, row.ID)
		if errors.Is(err, store.ErrNotFound) {
			err = s.adoptOne(ctx, row)
		}
		if err != nil {
			return err
		}
	}
	s.jobs.Notify()
	return nil
}

func (s *Service) adoptOne(ctx context.Context, row store.Build) error {
	was := row.State
	if was == stateRunning && s.db.Shared() && time.Since(store.Time(row.Started)) < s.cfg.BuildTimeout {
		return nil // another process, of the earlier version, may be running it
	}
	lost := was == stateRunning && row.Attempt >= s.cfg.MaxAttempts
	row.State, row.Owner, row.Step, row.Done, row.Cached = stateQueued, "", "", 0, 0
	columns := []string{"state", "owner", "step", "done", "cached"}
	if lost {
		row.State, row.Ended = stateFailed, store.Micros(time.Now())
		row.Error, row.Code = errRestarted.Message, string(errRestarted.Code)
		columns = append(columns, "ended", "code", "error")
	}
	err := s.db.Write(ctx, "build adopt", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateBuild(ctx, &row, []string{was}, columns...); err != nil || lost {
			return err
		}
		return s.enqueueJob(ctx, tx, row, row.Attempt)
	})
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrExists) {
		return nil // another process was faster
	}
	return err
}
