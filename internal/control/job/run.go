package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// gcInterval is the time between removals of old rows.
const gcInterval = time.Hour

// Run claims and runs jobs of the registered kinds until ctx ends. It then interrupts the running workers with
// ErrShutdown and returns when all of them have returned.
func (q *Queue) Run(ctx context.Context) error {
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer context.AfterFunc(ctx, func() { stop(ErrShutdown) })()
	defer stop(ErrShutdown) // before the wait, should the function above not have run yet
	var collected time.Time
	for ctx.Err() == nil {
		if time.Since(collected) >= gcInterval {
			collected = time.Now()
			q.warn(ctx, "old jobs were not removed", q.collectGarbage(ctx))
		}
		q.warn(ctx, "jobs of ended processes were not reclaimed", q.reclaim(ctx))
		q.warn(ctx, "queued jobs past their deadline were not ended", q.expire(ctx))
		for _, kind := range q.kinds() {
			q.warn(ctx, "jobs were not claimed", q.startQueued(ctx, running, q.worker(kind), &workers))
		}
		q.sleep(ctx)
	}
	return nil
}

func (q *Queue) warn(ctx context.Context, text string, err error) {
	if err != nil && ctx.Err() == nil {
		q.log.Warn(text+"; the next poll tries again", "err", err)
	}
}

// sleep waits for a notification, the time of the next queued job or the end of the poll interval.
func (q *Queue) sleep(ctx context.Context) {
	wait, now := q.cfg.Poll, q.cfg.Now()
	rows, err := q.db.Read().Jobs(ctx, store.JobQuery{
		Kinds: q.kinds(), States: []string{string(Queued)}, RunLater: store.Micros(now), Limit: 1,
	})
	if err == nil && len(rows) > 0 { // on an error the poll interval is short enough
		wait = min(wait, max(store.Time(rows[0].RunAfter).Sub(now), time.Millisecond))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-q.wake:
	case <-timer.C:
	}
}

// reclaim returns jobs to the queue whose lease has expired or whose process is known to be dead. A job whose attempts
// are used up fails.
func (q *Queue) reclaim(ctx context.Context) error {
	rows, err := q.db.Read().Jobs(ctx, store.JobQuery{Kinds: q.kinds(), States: []string{string(Running)}})
	if err != nil {
		return err
	}
	var all error
	now := store.Micros(q.cfg.Now())
	for _, was := range rows {
		own := was.LeaseOwner == q.instance
		if own && q.isActive(was.ID) || !own && !q.cfg.Exclusive && was.LeaseExpires > now {
			continue
		}
		w, row := q.worker(was.Kind), was
		if row.Attempts >= w.attemptsOf(row) {
			q.setEnd(&row, Failed, w.Abandoned)
		} else {
			row.State, row.LeaseOwner, row.LeaseExpires = string(Queued), "", 0
		}
		err := q.db.Write(ctx, "job reclaim", func(ctx context.Context, tx *store.Tx) error {
			return q.transition(ctx, tx, w, was, row)
		})
		switch {
		case err == nil:
			q.log.Info("job reclaimed", "job", row.ID, "kind", row.Kind, "state", row.State, "attempts", row.Attempts)
		case !errors.Is(err, store.ErrNotFound): // else another process was faster
			all = errors.Join(all, err)
		}
	}
	return all
}

// expire fails queued jobs whose deadline has passed.
func (q *Queue) expire(ctx context.Context) error {
	rows, err := q.db.Read().Jobs(ctx, store.JobQuery{
		Kinds: q.kinds(), States: []string{string(Queued)}, DeadlineBefore: store.Micros(q.cfg.Now()),
	})
	if err != nil {
		return err
	}
	var all error
	for _, was := range rows {
		row := was
		q.setEnd(&row, Failed, ErrDeadline)
		err := q.db.Write(ctx, "job expire", func(ctx context.Context, tx *store.Tx) error {
			return q.transition(ctx, tx, q.worker(row.Kind), was, row)
		})
		if !errors.Is(err, store.ErrNotFound) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// collectGarbage removes rows of jobs that ended long ago.
func (q *Queue) collectGarbage(ctx context.Context) error {
	var all error
	for _, kind := range q.kinds() {
		before := store.Micros(q.cfg.Now().Add(-q.worker(kind).Retention))
		rows, err := q.db.Read().Jobs(ctx, store.JobQuery{Kinds: []string{kind}, EndedBefore: before, Limit: 1000})
		if err == nil && len(rows) > 0 {
			err = q.db.Write(ctx, "job remove", func(ctx context.Context, tx *store.Tx) error {
				for _, r := range rows {
					if err := tx.DeleteJob(ctx, r.ID); err != nil {
						return err
					}
				}
				return nil
			})
		}
		all = errors.Join(all, err)
	}
	return all
}

// startQueued claims and starts as many jobs of a kind as may run now.
func (q *Queue) startQueued(ctx, running context.Context, w *Worker, workers *sync.WaitGroup) error {
	for ctx.Err() == nil && q.countActive(w.Kind) < w.Concurrency {
		x, err := q.claim(ctx, w)
		if x == nil {
			return err
		}
		workers.Go(func() { q.execute(running, x) })
	}
	return nil
}

// claim takes the lease of the next queued job of a kind. It returns nil if no job may run now.
func (q *Queue) claim(ctx context.Context, w *Worker) (*execution, error) {
	full, err := q.fullWorkspaces(ctx, w)
	if err != nil {
		return nil, err
	}
	rows, err := q.db.Read().Jobs(ctx, store.JobQuery{
		Kinds: []string{w.Kind}, States: []string{string(Queued)}, RunBefore: store.Micros(q.cfg.Now()),
		NotWorkspaces: full, Limit: w.Concurrency + 16,
	})
	if err != nil {
		return nil, err
	}
	for _, was := range rows {
		if q.isActive(was.ID) { // an attempt that lost its lease has not returned yet
			continue
		}
		x, err := q.claimRow(ctx, w, was)
		if errors.Is(err, store.ErrNotFound) { // another process was faster, or the job was cancelled
			continue
		}
		return x, err
	}
	return nil, nil
}

// claimRow takes the lease of a job. The job counts as active before the claim is written, so that Cancel never takes
// it for one of another process.
func (q *Queue) claimRow(ctx context.Context, w *Worker, was store.Job) (*execution, error) {
	now, row := q.cfg.Now(), was
	row.State, row.Attempts, row.Fence, row.LeaseOwner = string(Running), was.Attempts+1, was.Fence+1, q.instance
	row.Started, row.LeaseExpires = store.Micros(now), store.Micros(now.Add(q.cfg.Lease))
	row.Error, row.Code = "", ""
	x := &execution{w: w, done: make(chan struct{}), lease: &Lease{q: q, row: row, extended: time.Now()}}
	q.mu.Lock()
	q.active[row.ID] = x
	q.mu.Unlock()
	err := q.db.Write(ctx, "job claim", func(ctx context.Context, tx *store.Tx) error {
		return q.transition(ctx, tx, w, was, row)
	})
	if err == nil {
		return x, nil
	}
	// The claim may have been committed although its commit returned an error.
	now2, rerr := q.db.Read().Job(context.WithoutCancel(ctx), row.ID)
	if rerr == nil && now2.State == row.State && now2.Fence == row.Fence && now2.LeaseOwner == q.instance {
		return x, nil
	}
	q.remove(x)
	return nil, fmt.Errorf("claim job %s: %w", row.ID, err)
}

// fullWorkspaces returns the workspaces that have as many running jobs of a kind as they may.
func (q *Queue) fullWorkspaces(ctx context.Context, w *Worker) ([]string, error) {
	if w.PerWorkspace == 0 {
		return nil, nil
	}
	rows, err := q.db.Read().Jobs(ctx, store.JobQuery{Kinds: []string{w.Kind}, States: []string{string(Running)}})
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	var full []string
	for _, r := range rows {
		count[r.Workspace]++
		if r.Workspace != "" && count[r.Workspace] == w.PerWorkspace {
			full = append(full, r.Workspace)
		}
	}
	slices.Sort(full)
	return full, nil
}

func (q *Queue) isActive(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.active[id] != nil
}

func (q *Queue) countActive(kind string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, x := range q.active {
		if x.w.Kind == kind {
			n++
		}
	}
	return n
}

// remove ends the record of an execution.
func (q *Queue) remove(x *execution) {
	q.mu.Lock()
	delete(q.active, x.lease.row.ID)
	q.mu.Unlock()
	close(x.done)
}
