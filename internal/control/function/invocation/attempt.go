package invocation

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Times of attempts.
const (
	turnWait     = 10 * time.Second // for a turn of the function
	maxBackoff   = 5 * time.Minute
	writeTimeout = 10 * time.Second // for one try to write how an attempt ended
	stopTimeout  = 20 * time.Second // for all of them, when the process ends
)

// Causes of the end of the context of an attempt.
var (
	errShutdown = errors.New("the process ends")
	errLost     = errors.New("the run belongs to another process, or has ended")
)

// attempt is a run that this process has claimed.
type attempt struct {
	row  functionstore.Run
	stop context.CancelCauseFunc // set by execute; guarded by Service.mu
	over bool                    // stop was asked for before execute had begun; guarded by Service.mu
}

func (s *Service) begin(row functionstore.Run) *attempt {
	a := &attempt{row: row}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[row.ID] = a
	return a
}

// interrupt ends the attempt of a run in this process, if there is one.
func (s *Service) interrupt(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.active[id]
	switch {
	case a == nil:
	case a.stop == nil:
		a.over = true
	default:
		a.stop(errLost)
	}
}

// execute makes an attempt and writes how it ended.
func (s *Service) execute(running context.Context, a *attempt) {
	ctx, stop := context.WithCancelCause(running)
	defer stop(nil)
	s.mu.Lock()
	a.stop = stop
	if a.over {
		stop(errLost)
	}
	s.mu.Unlock()
	defer s.wake() // there is room for another one
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.active, a.row.ID)
	}()
	out, err := s.call(ctx, &a.row)
	s.settle(ctx, running, a.row, out, err)
}

// call calls the function.
func (s *Service) call(ctx context.Context, row *functionstore.Run) (function.Outcome, error) {
	if row.Version == 0 {
		fn, err := functionstore.In(s.db.Read()).Function(ctx, row.Function)
		if errors.Is(err, store.ErrNotFound) || err == nil && fn.State != functionstore.Active {
			err = api.Errorf(api.NotFound, "function %s is gone", row.Function)
		}
		if err != nil {
			return function.Outcome{}, err
		}
		if row.Version, err = s.invoker.Pick(ctx, &fn, row.Alias, 0); err != nil {
			return function.Outcome{}, err
		}
	}
	call := function.Call{
		Function: api.FunctionID(row.Function), Version: row.Version, Run: api.InvocationID(row.ID),
		Attempt: int(row.Attempt), Event: []byte(row.Input), Trace: row.Trace, Wait: turnWait,
	}
	switch row.Origin {
	case function.OriginSchedule:
		call.Scheduled = store.Time(row.Moment)
	case function.OriginQueue:
		_, call.Queue, _ = strings.Cut(strings.TrimPrefix(row.Batch, queueBatch), "/")
	}
	return s.invoker.Do(ctx, call)
}

// settle writes how an attempt ended. It tries until it has succeeded or the run is no longer this process's; a process
// that ends stops trying after stopTimeout, and the run is attempted again when its lease has ended.
func (s *Service) settle(
	ctx, running context.Context,
	was functionstore.Run,
	out function.Outcome,
	err error,
) {
	was.Lease = 0 // the heartbeat extends it
	patience, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(running, func() { time.AfterFunc(stopTimeout, stop) })()
	interrupted := err != nil && ctx.Err() != nil
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, maxSleep) {
		row := was
		switch now := s.now(); {
		case interrupted && errors.Is(context.Cause(ctx), errLost):
			return
		case interrupted:
			fail(&row, interruptedFailure())
			s.retry(&row, now, 0)
		case err != nil:
			s.refused(&row, err, now)
		default:
			function.Finish(&row, out, now)
			if row.State != store.RunSuccess {
				s.retry(&row, now, s.backoff(row.Attempt))
			}
		}
		write, end := context.WithTimeout(patience, writeTimeout)
		werr := s.db.Write(write, "invocation settle", func(ctx context.Context, tx *store.Tx) error {
			return s.settleTx(ctx, tx, &row, was)
		})
		end()
		switch {
		case werr == nil:
			s.announce([]functionstore.Run{row})
			return
		case errors.Is(werr, store.ErrNotFound):
			return // it was canceled, or another process has it, or an earlier try was committed after all
		}
		s.log.Warn("the end of an attempt was not written; it is tried again", "run", was.ID, "err", werr)
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-patience.Done():
			timer.Stop()
			return
		}
	}
}

// refused sets what follows from an error of the invoker.
func (s *Service) refused(row *functionstore.Run, err error, now time.Time) {
	e := api.AsError(err)
	switch e.Code {
	case api.RateLimited: // the handler was not called
		s.queue(row, now.Add(time.Second+rand.N(time.Second)))
		row.Attempt--
		return
	case api.Internal:
		s.log.Error("run of a function failed", "run", row.ID, "attempt", row.Attempt, "err", err)
	}
	fail(row, &api.FunctionError{Type: string(e.Code), Message: e.Message})
	if e.Code != api.NotFound && e.Code != api.Gone {
		s.retry(row, now, s.backoff(row.Attempt))
	} else {
		row.Ended = store.Micros(now)
	}
}

// queue makes a row one that is due at a moment.
func (s *Service) queue(row *functionstore.Run, due time.Time) {
	row.State, row.Due, row.Instance, row.Lease, row.Ended = store.RunQueued, store.Micros(due), "", 0, 0
}

// retry makes a row that has failed one that is due after a delay, if there may be another attempt.
func (s *Service) retry(row *functionstore.Run, now time.Time, delay time.Duration) {
	due := now.Add(delay)
	if row.Attempt >= row.Attempts || store.Micros(due) >= row.Expires {
		row.Ended = store.Micros(now)
		return
	}
	s.queue(row, due)
}

// backoff returns how long to wait after a failed attempt: between half of and the whole exponential back-off.
func (s *Service) backoff(attempt int64) time.Duration {
	d := s.cfg.Backoff
	for n := int64(1); n < attempt && d < maxBackoff; n++ {
		d *= 2
	}
	d = min(d, maxBackoff)
	return d - rand.N(d/2+1)
}

// outcomeColumns are the columns that the end of an attempt changes.
var outcomeColumns = []string{
	"version", "state", "instance", "lease", "attempt", "due", "result", "error", "stdout", "stderr", "truncated",
	"exit_code", "sandbox", "cold", "memory", "duration", "ended",
}

// settleTx writes a row that was running, and what follows from it.
func (s *Service) settleTx(ctx context.Context, tx *store.Tx, row *functionstore.Run, was functionstore.Run) error {
	if err := functionstore.In(tx).SettleRun(ctx, row, was, outcomeColumns...); err != nil {
		return err
	}
	return s.follow(ctx, tx, row)
}

// follow writes what follows from the state of a run.
func (s *Service) follow(ctx context.Context, tx *store.Tx, row *functionstore.Run) error {
	if err := s.observe(ctx, tx, row); err != nil || row.Ended == 0 {
		return err
	}
	switch row.Origin {
	case function.OriginMap:
		if err := functionstore.In(tx).ReleaseRuns(ctx, row.Batch, 1, row.Ended); err != nil {
			return err
		}
	case function.OriginQueue:
		if err := s.settleMessages(ctx, functionstore.In(tx), row); err != nil {
			return err
		}
	}
	return s.sendOutcome(ctx, tx, row)
}

// observe informs the observer of a run of a schedule.
func (s *Service) observe(ctx context.Context, tx *store.Tx, row *functionstore.Run) error {
	if s.observer == nil || row.Origin != function.OriginSchedule || row.Dedupe == nil {
		return nil
	}
	state := schedule.FunctionState{
		Run: *row.Dedupe, State: row.State, Attempt: int(row.Attempt), Sandbox: row.Sandbox, ExitCode: row.ExitCode,
		Stdout: row.Stdout, Stderr: row.Stderr, Started: row.Started, Ended: row.Ended,
	}
	if e := function.View(row).Error; e != nil {
		state.Error = e.Type + ": " + e.Message
	}
	return s.observer(ctx, tx, state)
}

// announce informs those who wait for runs that have ended, after the commit.
func (s *Service) announce(rows []functionstore.Run) {
	for i := range rows {
		row := &rows[i]
		if row.Ended == 0 {
			s.wake()
			continue
		}
		s.wake() // a destination, or the next of a map
		if row.Batch != "" {
			s.watchers.notify(row.Batch)
		}
		s.jobs.Notify()
		if s.ended != nil {
			s.ended(function.View(row))
		}
	}
}

// heartbeat extends the leases of the runs of this process until ctx ends.
func (s *Service) heartbeat(ctx context.Context) {
	ticker := time.NewTicker(s.cfg.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.extend(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("leases of runs were not extended; it is tried again", "err", err)
		}
	}
}

// extend extends the leases of the runs under way, and interrupts attempts at those that were lost.
func (s *Service) extend(ctx context.Context) error {
	s.mu.Lock()
	ids := make([]string, 0, len(s.active))
	for id := range s.active {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	var kept []string
	ctx, end := context.WithTimeout(ctx, s.cfg.Lease/3)
	defer end()
	err := s.db.Write(ctx, "invocation extend", func(ctx context.Context, tx *store.Tx) (err error) {
		until := store.Micros(s.now().Add(s.cfg.Lease))
		kept, err = functionstore.In(tx).ExtendRuns(ctx, s.instance, ids, until)
		return err
	})
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, id := range kept {
		has[id] = true
	}
	for _, id := range ids {
		if !has[id] { // or it has just been written down, and no attempt is interrupted
			s.interrupt(id)
		}
	}
	return nil
}

func expiredFailure() *api.FunctionError {
	return &api.FunctionError{Type: "expired", Message: "its time ran out before an attempt could begin"}
}

func lostFailure() *api.FunctionError {
	return &api.FunctionError{Type: "lost", Message: "the process that ran it ended"}
}

func interruptedFailure() *api.FunctionError {
	return &api.FunctionError{Type: "interrupted", Message: "the server was stopped while it ran"}
}

// fail makes a row one of an attempt that has failed.
func fail(row *functionstore.Run, e *api.FunctionError) {
	data, err := json.Marshal(e)
	if err != nil { // view shows what is no JSON as a message
		data = []byte(e.Message)
	}
	row.State, row.Error, row.Result, row.Stdout, row.Stderr = store.RunError, string(data), "", "", ""
	row.ExitCode, row.Truncated = nil, false
}
