package job

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// settleTimeout bounds one attempt to write how a job ended.
const settleTimeout = 10 * time.Second

// Lease is the right of a worker to run one attempt of a job. Its methods with a transaction fail with ErrLeaseLost if
// the job belongs to another worker by now, and take effect when the transaction commits. The caller must not use it
// after Worker.Run has returned.
type Lease struct {
	q   *Queue
	row store.Job // as it was claimed

	mu       sync.Mutex
	extended time.Time // start of the last write that extended the lease; guarded by mu
	cause    error     // why the attempt was interrupted; guarded by mu
}

// Job returns the job as it was when it was claimed.
func (l *Lease) Job() Job { return jobOf(l.row) }

// Check fails if the lease was lost, and keeps others from taking it until the transaction ends.
func (l *Lease) Check(ctx context.Context, tx *store.Tx) error {
	return l.write(ctx, tx, l.row, "lease_owner")
}

// SetProgress records what the attempt is doing, for people.
func (l *Lease) SetProgress(ctx context.Context, tx *store.Tx, text string) error {
	row := l.row
	row.Progress = text
	return l.write(ctx, tx, row, "progress")
}

// SetLogPosition records the number of the last line that was written to the log of the job.
func (l *Lease) SetLogPosition(ctx context.Context, tx *store.Tx, position int64) error {
	row := l.row
	row.LogPosition = position
	return l.write(ctx, tx, row, "log_position")
}

// Complete ends the job as done, with a result that is marshalled to JSON.
func (l *Lease) Complete(ctx context.Context, tx *store.Tx, result any) error {
	data, err := json.Marshal(result)
	if err != nil {
		return err
	}
	row := l.row
	l.q.setEnd(&row, Done, nil)
	row.Result = string(data)
	return l.end(ctx, tx, row)
}

// Fail ends the job as failed, or as cancelled if Queue.Cancel interrupted it.
func (l *Lease) Fail(ctx context.Context, tx *store.Tx, err error) error {
	row := l.row
	state := Failed
	if errors.Is(l.interruption(), ErrCancelled) {
		state = Cancelled
	}
	l.q.setEnd(&row, state, err)
	return l.end(ctx, tx, row)
}

// Release returns the job to the queue. The attempt does not count.
func (l *Lease) Release(ctx context.Context, tx *store.Tx) error {
	row := l.row
	l.release(&row)
	return l.end(ctx, tx, row)
}

func (l *Lease) release(row *store.Job) {
	row.State, row.Attempts, row.LeaseOwner, row.LeaseExpires = string(Queued), row.Attempts-1, "", 0
}

func (l *Lease) end(ctx context.Context, tx *store.Tx, row store.Job) error {
	return l.write(
		ctx,
		tx,
		row,
		"state",
		"attempts",
		"lease_owner",
		"lease_expires",
		"error",
		"code",
		"result",
		"ended",
	)
}

// write writes columns of the job if the lease still holds.
func (l *Lease) write(ctx context.Context, tx *store.Tx, row store.Job, columns ...string) error {
	err := tx.UpdateJob(ctx, &row, string(Running), l.row.Fence, columns...)
	if errors.Is(err, store.ErrNotFound) {
		return ErrLeaseLost
	}
	return err
}

func (l *Lease) interruption() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// remaining returns how long the lease surely holds: a third of it is left for clocks that differ.
func (l *Lease) remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.extended.Add(l.q.cfg.Lease * 2 / 3))
}

// extend extends the lease once.
func (l *Lease) extend(ctx context.Context) error {
	began, row := time.Now(), l.row
	row.LeaseExpires = store.Micros(l.q.cfg.Now().Add(l.q.cfg.Lease))
	err := l.q.db.Write(ctx, "job extend", func(ctx context.Context, tx *store.Tx) error {
		return l.write(ctx, tx, row, "lease_expires")
	})
	if err == nil {
		l.mu.Lock()
		l.extended = began
		l.mu.Unlock()
	}
	return err
}

// execution is one attempt in this process.
type execution struct {
	w     *Worker
	lease *Lease
	done  chan struct{} // closed when the attempt has ended and its outcome is written

	cancel context.CancelCauseFunc // nil before the attempt begins; guarded by lease.mu
}

// stop interrupts the attempt. The first cause counts.
func (x *execution) stop(cause error) {
	x.lease.mu.Lock()
	defer x.lease.mu.Unlock()
	if x.lease.cause == nil {
		x.lease.cause = cause
	}
	if x.cancel != nil {
		x.cancel(x.lease.cause)
	}
}

// begin returns the context of the attempt.
func (x *execution) begin(running context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(running)
	free := func() {}
	if at := x.lease.row.Deadline; at != 0 {
		left := store.Time(at).Sub(x.lease.q.cfg.Now())
		ctx, free = context.WithTimeoutCause(ctx, left, ErrDeadline)
	}
	x.lease.mu.Lock()
	defer x.lease.mu.Unlock()
	x.cancel = cancel
	if x.lease.cause != nil {
		cancel(x.lease.cause)
	}
	return ctx, func() {
		free()
		cancel(nil)
	}
}

// execute runs one attempt and writes its outcome.
func (q *Queue) execute(running context.Context, x *execution) {
	defer q.Notify()
	defer q.remove(x)
	ctx, end := x.begin(running)
	defer end()
	returned := make(chan struct{})
	var extending sync.WaitGroup
	extending.Go(func() { q.keepLease(ctx, x, returned) })
	err := x.w.Run(ctx, x.lease)
	cause := context.Cause(ctx)
	close(returned)
	extending.Wait()
	q.settle(running, x, err, cause)
}

// keepLease extends the lease until the worker has returned, also after its context has ended: it may have much to
// clean up. It interrupts the worker if the lease is lost.
func (q *Queue) keepLease(ctx context.Context, x *execution, returned <-chan struct{}) {
	ctx = context.WithoutCancel(ctx)
	pause := q.cfg.Lease / 3
	for {
		timer := time.NewTimer(pause)
		select {
		case <-returned:
			timer.Stop()
			return
		case <-timer.C:
		}
		bounded, cancel := context.WithTimeout(ctx, q.cfg.Lease/3)
		err := x.lease.extend(bounded)
		cancel()
		switch {
		case err == nil:
			pause = q.cfg.Lease / 3
		case errors.Is(err, ErrLeaseLost):
			x.stop(q.whyLost(ctx, x))
			return
		case x.lease.remaining() <= 0:
			q.log.Warn("the lease of a job could not be extended", "job", x.lease.row.ID, "err", err)
			x.stop(ErrLeaseLost)
			return
		default:
			pause = q.cfg.Lease / 30
		}
	}
}

// whyLost returns ErrCancelled if another process cancelled the job, else ErrLeaseLost.
func (q *Queue) whyLost(ctx context.Context, x *execution) error {
	row, err := q.db.Read().Job(ctx, x.lease.row.ID)
	if err == nil && State(row.State) == Cancelled {
		return ErrCancelled
	}
	return ErrLeaseLost
}

// settle writes the outcome of an attempt. While the store fails, it tries again as long as the lease holds and the
// queue runs; after that the job is reclaimed when its lease expires.
func (q *Queue) settle(running context.Context, x *execution, err, cause error) {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		werr := q.settleOnce(running, x, err, cause)
		if werr == nil || errors.Is(werr, store.ErrNotFound) {
			return
		}
		if running.Err() != nil || x.lease.remaining() < pause {
			q.log.Error("the outcome of a job was not written; it is reclaimed when its lease expires",
				"job", x.lease.row.ID, "kind", x.w.Kind, "err", werr)
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-running.Done():
			timer.Stop()
		}
	}
}

func (q *Queue) settleOnce(running context.Context, x *execution, err, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(running), settleTimeout)
	defer cancel()
	was, rerr := q.db.Read().Job(ctx, x.lease.row.ID)
	if rerr != nil {
		return rerr
	}
	if State(was.State) != Running || was.Fence != x.lease.row.Fence {
		return nil // the worker ended the job itself, or lost its lease
	}
	row := q.outcome(x, was, err, cause)
	if err != nil {
		q.log.Info("job attempt failed", "job", row.ID, "kind", row.Kind, "attempt", was.Attempts, "state", row.State,
			"err", err)
	}
	return q.db.Write(ctx, "job settle", func(ctx context.Context, tx *store.Tx) error {
		return q.transition(ctx, tx, x.w, was, row)
	})
}

// outcome returns the row of a job after an attempt that returned err, in a context that ended by cause.
func (q *Queue) outcome(x *execution, row store.Job, err, cause error) store.Job {
	_, permanent := errors.AsType[permanentError](err)
	switch {
	case err == nil:
		q.setEnd(&row, Done, nil)
	case errors.Is(cause, ErrCancelled):
		q.setEnd(&row, Cancelled, ErrCancelled)
	case errors.Is(cause, ErrDeadline):
		q.setEnd(&row, Failed, ErrDeadline)
	case errors.Is(cause, ErrShutdown) && !permanent:
		x.lease.release(&row)
	case permanent || row.Attempts >= x.w.attemptsOf(row):
		q.setEnd(&row, Failed, err)
	default:
		q.setEnd(&row, Queued, err)
		row.Ended = 0
		row.RunAfter = store.Micros(q.cfg.Now().Add(x.w.delay(row.Attempts)))
	}
	return row
}
