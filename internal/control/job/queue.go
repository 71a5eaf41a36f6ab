package job

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// State is the state of a job.
type State string

// The states of a job.
const (
	Queued    State = "queued"
	Running   State = "running"
	Done      State = "done"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Ended reports whether a job in this state never changes again.
func (s State) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// Spec describes a job to enqueue. Only Kind is required.
type Spec struct {
	ID          string // "": a new one
	Kind        string
	Key         string // at most one active job of the kind has it; "": not unique
	Owner       string // "kind/id" of the resource that the job works for
	Workspace   api.Workspace
	Payload     any       // marshalled to JSON
	RunAfter    time.Time // zero: at once
	Deadline    time.Time // after which the job fails, queued or running; zero: none
	MaxAttempts int       // 0: that of the worker
	Attempts    int       // made before, for work that another table kept until now
}

// Job is a job as it was at one moment. Times that do not apply are zero.
type Job struct {
	ID, Kind, Key, Owner      string
	Workspace                 api.Workspace
	Payload                   json.RawMessage
	State                     State
	Attempts, MaxAttempts     int
	RunAfter, Deadline        time.Time
	LeaseOwner                string
	Fence                     int64
	LeaseExpires              time.Time
	Progress                  string
	LogPosition               int64 // number of the last log line that was written
	Error                     string
	Code                      api.Code
	Result                    json.RawMessage
	Created, Started, EndedAt time.Time
}

// Config configures a Queue. Zero fields mean the default.
type Config struct {
	// Exclusive says that no other process uses the store: leases of other queues are those of dead processes, and
	// are reclaimed at once.
	Exclusive bool
	Lease     time.Duration    // 30 s
	Poll      time.Duration    // time between looks at the store without a notification; 5 s
	Now       func() time.Time // clock of the rows; time.Now
}

// Queue is a durable job queue. Make it with New.
type Queue struct {
	cfg      Config
	db       *store.DB
	log      *slog.Logger
	instance string
	wake     chan struct{}

	mu      sync.Mutex
	workers map[string]*Worker    // by kind; guarded by mu
	active  map[string]*execution // by job; guarded by mu
}

// New makes a queue; it does not touch the store.
func New(cfg Config, db *store.DB, log *slog.Logger) (*Queue, error) {
	if db == nil || log == nil {
		return nil, errors.New("job: store and log are required")
	}
	cfg.Lease = cmp.Or(cfg.Lease, 30*time.Second)
	cfg.Poll = cmp.Or(cfg.Poll, 5*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Queue{
		cfg: cfg, db: db, log: log, instance: strings.ToLower(rand.Text()), wake: make(chan struct{}, 1),
		workers: map[string]*Worker{}, active: map[string]*execution{},
	}, nil
}

// Register adds the worker of a kind. It must be called before Run; a second worker of a kind replaces the first.
func (q *Queue) Register(w Worker) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.workers[w.Kind] = w.withDefaults()
}

func (q *Queue) worker(kind string) *Worker {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.workers[kind]
}

// kinds returns the kinds that have workers, sorted.
func (q *Queue) kinds() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]string, 0, len(q.workers))
	for kind := range q.workers {
		out = append(out, kind)
	}
	slices.Sort(out)
	return out
}

// Notify makes Run look at the store soon. Call it after the commit of a transaction with EnqueueTx.
func (q *Queue) Notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Enqueue adds a job. If an active job of the kind has the key already, Enqueue returns that one and false.
func (q *Queue) Enqueue(ctx context.Context, spec Spec) (j Job, created bool, err error) {
	err = q.db.Write(ctx, "job enqueue", func(ctx context.Context, tx *store.Tx) error {
		j, created, err = q.EnqueueTx(ctx, tx, spec)
		return err
	})
	if err != nil {
		return Job{}, false, fmt.Errorf("enqueue a job of kind %s: %w", spec.Kind, err)
	}
	q.Notify()
	return j, created, nil
}

// EnqueueTx is Enqueue in a transaction of the caller. Call Notify after its commit.
func (q *Queue) EnqueueTx(ctx context.Context, tx *store.Tx, spec Spec) (j Job, created bool, err error) {
	row, err := q.newRow(spec)
	if err != nil {
		return Job{}, false, err
	}
	err = tx.InsertJob(ctx, &row)
	if errors.Is(err, store.ErrExists) && spec.Key != "" {
		other, aerr := tx.ActiveJob(ctx, spec.Kind, spec.Key)
		if aerr == nil {
			return jobOf(other), false, nil
		}
		if !errors.Is(aerr, store.ErrNotFound) {
			err = aerr
		}
	}
	if err != nil {
		return Job{}, false, err
	}
	return jobOf(row), true, nil
}

func (q *Queue) newRow(spec Spec) (store.Job, error) {
	if spec.Kind == "" {
		return store.Job{}, errors.New("a job needs a kind")
	}
	payload, err := json.Marshal(spec.Payload)
	if err != nil {
		return store.Job{}, fmt.Errorf("payload: %w", err)
	}
	now := store.Micros(q.cfg.Now())
	row := store.Job{
		ID: spec.ID, Kind: spec.Kind, UniqueKey: spec.Key, Owner: spec.Owner, Workspace: string(spec.Workspace),
		Payload: string(payload), State: string(Queued), Attempts: spec.Attempts, MaxAttempts: spec.MaxAttempts,
		RunAfter: now, Deadline: store.Micros(spec.Deadline), Created: now,
	}
	if row.ID == "" {
		row.ID = "job" + strings.ToLower(rand.Text())
	}
	if !spec.RunAfter.IsZero() {
		row.RunAfter = store.Micros(spec.RunAfter)
	}
	return row, nil
}

// Get returns a job. The error wraps store.ErrNotFound if it does not exist.
func (q *Queue) Get(ctx context.Context, id string) (Job, error) {
	row, err := q.db.Read().Job(ctx, id)
	if err != nil {
		return Job{}, err
	}
	return jobOf(row), nil
}

// Cancel ends a job that has not ended and returns it as it ended. If the job runs in this process, Cancel interrupts
// its worker with ErrCancelled and waits for the worker to return, which may have completed the job. If the job runs
// in another process, Cancel ends it at once, and that process notices when it extends its lease. The error wraps
// store.ErrNotFound if the job does not exist.
func (q *Queue) Cancel(ctx context.Context, id string) (Job, error) {
	if err := q.interrupt(ctx, id); err != nil {
		return Job{}, err
	}
	var row store.Job
	err := q.db.Write(ctx, "job cancel", func(ctx context.Context, tx *store.Tx) (err error) {
		if row, err = tx.Job(ctx, id); err != nil || State(row.State).Ended() {
			return err
		}
		w := q.worker(row.Kind)
		if w == nil {
			return fmt.Errorf("no worker of kind %s is registered", row.Kind)
		}
		was := row
		q.setEnd(&row, Cancelled, ErrCancelled)
		return q.transition(ctx, tx, w, was, row)
	})
	if err != nil {
		return Job{}, fmt.Errorf("cancel job %s: %w", id, err)
	}
	return jobOf(row), nil
}

// interrupt cancels the execution of a job in this process, if there is one, and waits until it has returned.
func (q *Queue) interrupt(ctx context.Context, id string) error {
	q.mu.Lock()
	x := q.active[id]
	q.mu.Unlock()
	if x == nil {
		return nil
	}
	x.stop(ErrCancelled)
	select {
	case <-x.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// setEnd makes a row one of a job that has ended.
func (q *Queue) setEnd(row *store.Job, state State, err error) {
	row.State, row.Ended = string(state), store.Micros(q.cfg.Now())
	row.LeaseOwner, row.LeaseExpires = "", 0
	row.Error, row.Code = "", ""
	if e, ok := errors.AsType[*api.Error](err); ok {
		row.Error, row.Code = e.Message, string(e.Code)
	} else if err != nil { // its text may be internal
		row.Error, row.Code = "internal error: the log of the server has the details", string(api.Internal)
	}
}

// transition writes the state now of a job that is in the state was, and informs the worker. The error wraps
// store.ErrNotFound if the job has changed since was was read.
func (q *Queue) transition(ctx context.Context, tx *store.Tx, w *Worker, was, now store.Job) error {
	err := tx.UpdateJob(ctx, &now, was.State, was.Fence, "state", "attempts", "run_after", "lease_owner", "fence",
		"lease_expires", "error", "code", "result", "started", "ended")
	if err != nil || w.Changed == nil {
		return err
	}
	return w.Changed(ctx, tx, jobOf(now))
}

func jobOf(r store.Job) Job {
	return Job{
		ID: r.ID, Kind: r.Kind, Key: r.UniqueKey, Owner: r.Owner, Workspace: api.Workspace(r.Workspace),
		Payload: json.RawMessage(r.Payload), State: State(r.State), Attempts: r.Attempts, MaxAttempts: r.MaxAttempts,
		RunAfter: store.Time(r.RunAfter), Deadline: store.Time(r.Deadline), LeaseOwner: r.LeaseOwner, Fence: r.Fence,
		LeaseExpires: store.Time(r.LeaseExpires), Progress: r.Progress, LogPosition: r.LogPosition, Error: r.Error,
		Code: api.Code(r.Code), Result: json.RawMessage(r.Result), Created: store.Time(r.Created),
		Started: store.Time(r.Started), EndedAt: store.Time(r.Ended),
	}
}
