package job

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Causes of the end of a worker's context, and errors of a Lease.
var (
	// ErrLeaseLost says that the job belongs to another worker now, or has been ended by another process.
	ErrLeaseLost = errors.New("the lease of the job was lost")
	// ErrShutdown says that Queue.Run ends. The job returns to the queue.
	ErrShutdown = errors.New("the job queue shuts down")
	// ErrCancelled says that the job was cancelled.
	ErrCancelled = api.Errorf(api.Canceled, "the job was cancelled")
	// ErrDeadline says that the deadline of the job has passed.
	ErrDeadline = api.Errorf(api.Timeout, "the deadline of the job has passed")
	// ErrAbandoned is the error of a job whose process ended in each of its attempts.
	ErrAbandoned = api.Errorf(api.Unavailable, "the process that ran the job ended in each of its attempts")
)

// Worker runs the jobs of one kind. Zero fields mean the default.
type Worker struct {
	Kind string
	// Run does the work of one attempt. The job is done if Run returns nil. If Run returns an error, the job is queued
	// for another attempt, or fails if the error is permanent or the attempts are used up. Run may instead end the job
	// itself in a transaction of its own: see Lease. Run must return soon after its context has ended; the cause of the
	// context is one of the errors of this package.
	Run func(ctx context.Context, l *Lease) error
	// Changed, if not nil, is called in every transaction in which the queue changes the state of a job, with the new
	// state, so that a service can keep rows of its own in step. It is not called for transactions that Run makes
	// through its Lease. If it returns an error, the job keeps its old state and the change is tried again.
	Changed func(ctx context.Context, tx *store.Tx, j Job) error

	Concurrency  int           // jobs that this process runs at a time; 1
	PerWorkspace int           // of those of one workspace that run at a time; 0: no limit
	MaxAttempts  int           // 3; a job may have its own
	Backoff      time.Duration // before the second attempt, doubled for each one after it; 1 s
	MaxBackoff   time.Duration // 5 min
	Retention    time.Duration // how long the rows of ended jobs are kept; 7 days
	Abandoned    error         // error of a job whose process ended in each of its attempts; ErrAbandoned
}

func (w Worker) withDefaults() *Worker {
	w.Concurrency = cmp.Or(w.Concurrency, 1)
	w.MaxAttempts = cmp.Or(w.MaxAttempts, 3)
	w.Backoff = cmp.Or(w.Backoff, time.Second)
	w.MaxBackoff = cmp.Or(w.MaxBackoff, 5*time.Minute)
	w.Retention = cmp.Or(w.Retention, 7*24*time.Hour)
	if w.Abandoned == nil {
		w.Abandoned = ErrAbandoned
	}
	return &w
}

// delay returns how long to wait after a failed attempt: between half of and the whole exponential back-off.
func (w *Worker) delay(attempt int) time.Duration {
	d := w.Backoff
	for n := 1; n < attempt && d < w.MaxBackoff; n++ {
		d *= 2
	}
	d = min(d, w.MaxBackoff)
	return d - rand.N(d/2+1)
}

// attemptsOf returns how many attempts a job may have.
func (w *Worker) attemptsOf(row store.Job) int { return cmp.Or(row.MaxAttempts, w.MaxAttempts) }

type permanentError struct{ error }

// Unwrap implements the interface of package errors.
func (e permanentError) Unwrap() error { return e.error }

// Permanent wraps an error of Worker.Run that another attempt would not cure.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}
