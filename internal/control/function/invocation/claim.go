package invocation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// turns remember who had a slot last, so that equals take turns.
type turns struct {
	n          uint64
	workspaces map[string]uint64
	functions  map[string]uint64
}

// share says how many of the due runs of each function get one of the free slots. load are the runs under way of each
// workspace and function.
func (t *turns) share(due []functionstore.Load, load map[string]int, free int) map[string]int {
	if t.workspaces == nil {
		t.workspaces, t.functions = map[string]uint64{}, map[string]uint64{}
	}
	t.forget(due)
	got, waits := map[string]int{}, map[string][]*functionstore.Load{}
	load = maps.Clone(load)
	for i := range due {
		waits[due[i].Workspace] = append(waits[due[i].Workspace], &due[i])
	}
	for ; free > 0; free-- {
		workspace := ""
		for w := range waits {
			if load[w] < free && (workspace == "" || less(load, t.workspaces, w, workspace)) {
				workspace = w
			}
		}
		if workspace == "" {
			break
		}
		list := waits[workspace]
		best := 0
		for i := range list {
			if less(load, t.functions, list[i].Function, list[best].Function) {
				best = i
			}
		}
		f := list[best]
		t.n++
		t.workspaces[workspace], t.functions[f.Function] = t.n, t.n
		got[f.Function]++
		load[workspace]++
		load[f.Function]++
		if f.Runs--; f.Runs == 0 {
			waits[workspace] = append(list[:best:best], list[best+1:]...)
			if len(waits[workspace]) == 0 {
				delete(waits, workspace)
			}
		}
	}
	return got
}

// less reports whether a comes before b: it has fewer runs under way, or had its last slot earlier.
func less(load map[string]int, last map[string]uint64, a, b string) bool {
	if load[a] != load[b] {
		return load[a] < load[b]
	}
	if last[a] != last[b] {
		return last[a] < last[b]
	}
	return a < b
}

// forget removes those that have nothing due.
func (t *turns) forget(due []functionstore.Load) {
	workspaces, functions := map[string]uint64{}, map[string]uint64{}
	for _, d := range due {
		if n, ok := t.workspaces[d.Workspace]; ok {
			workspaces[d.Workspace] = n
		}
		if n, ok := t.functions[d.Function]; ok {
			functions[d.Function] = n
		}
	}
	t.workspaces, t.functions = workspaces, functions
}

// claim claims and starts as many runs as may be made now.
func (s *Service) claim(ctx, running context.Context, workers *sync.WaitGroup) error {
	for ctx.Err() == nil {
		n, err := s.claimSome(ctx, running, workers)
		if err != nil || n == 0 {
			return err
		}
	}
	return nil
}

// claimSome returns how many runs it has claimed, or found to be too old.
func (s *Service) claimSome(ctx, running context.Context, workers *sync.WaitGroup) (int, error) {
	now := s.now()
	in := functionstore.In(s.db.Read())
	shares, busy, err := s.shares(ctx, in, now)
	if err != nil {
		return 0, err
	}
	var rows []functionstore.Run
	for fn, n := range shares {
		due, err := in.DueRuns(ctx, fn, store.Micros(now), n+len(busy))
		if err != nil {
			return 0, err
		}
		for _, row := range due {
			if n > 0 && !busy[row.ID] { // an attempt that lost its lease may not have returned yet
				rows = append(rows, row)
				n--
			}
		}
	}
	if len(rows) == 0 {
		return 0, nil
	}
	claimed, old, err := s.writeClaims(ctx, rows, now)
	for i := range claimed {
		a := s.begin(claimed[i])
		workers.Go(func() { s.execute(running, a) })
	}
	s.announce(old)
	return len(claimed) + len(old), err
}

// shares returns how many runs of each function may be claimed, and the runs that this process has under way.
func (s *Service) shares(
	ctx context.Context,
	in functionstore.Tx,
	now time.Time,
) (shares map[string]int, busy map[string]bool, err error) {
	s.mu.Lock()
	free := s.cfg.Concurrency - len(s.active)
	load, busy := map[string]int{}, map[string]bool{}
	for id, a := range s.active {
		busy[id] = true
		load[a.row.Workspace]++
		load[a.row.Function]++
	}
	s.mu.Unlock()
	if free <= 0 {
		return nil, busy, nil
	}
	due, err := in.DueFunctions(ctx, store.Micros(now))
	if err != nil || len(due) == 0 {
		return nil, busy, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns.share(due, load, free), busy, nil
}

// writeClaims writes rows as running, and ends those that are too old.
func (s *Service) writeClaims(
	ctx context.Context,
	rows []functionstore.Run,
	now time.Time,
) (claimed, old []functionstore.Run, err error) {
	var expired []functionstore.Run
	err = s.db.Write(ctx, "invocation claim", func(ctx context.Context, tx *store.Tx) error {
		claimed, expired = nil, nil
		for _, row := range rows {
			if row.Expires <= store.Micros(now) {
				fail(&row, expiredFailure())
				row.Ended = store.Micros(now)
				err := functionstore.In(tx).UpdateRun(ctx, &row, store.RunQueued, outcomeColumns...)
				if err == nil {
					err = s.follow(ctx, tx, &row)
				}
				if err == nil {
					expired = append(expired, row)
				} else if !errors.Is(err, store.ErrNotFound) {
					return err
				}
				continue
			}
			row.State, row.Instance, row.Attempt = store.RunRunning, s.instance, row.Attempt+1
			row.Started, row.Lease = store.Micros(now), store.Micros(now.Add(s.cfg.Lease))
			err := functionstore.In(tx).ClaimRun(ctx, &row)
			if errors.Is(err, store.ErrNotFound) { // another process was faster, or it was canceled
				continue
			}
			if err == nil {
				err = s.observe(ctx, tx, &row)
			}
			if err != nil {
				return err
			}
			claimed = append(claimed, row)
		}
		return nil
	})
	if err == nil {
		return claimed, expired, nil
	}
	// The claims may have been committed although the commit returned an error. Those are not lost: no attempt has
	// begun under them, and reclaim gives them back when their lease ends.
	return nil, nil, fmt.Errorf("claim: %w", err)
}

// reclaim gives back runs whose lease has ended, or, with all, all that this process does not have under way.
func (s *Service) reclaim(ctx context.Context, all bool) error {
	until := s.micros()
	if all {
		until = 1<<63 - 1
	} else if time.Now().Before(s.patience) {
		return nil
	}
	const some = 100
	for after := ""; ; {
		rows, err := functionstore.In(s.db.Read()).LeasedRuns(ctx, until, after, some)
		if err != nil {
			return err
		}
		for i := range rows {
			row := &rows[i]
			after = row.ID
			if s.has(row.ID) { // the heartbeat is late
				continue
			}
			if err := s.giveBack(ctx, row); err != nil {
				return err
			}
		}
		if len(rows) < some {
			return nil
		}
	}
}

// giveBack queues a run whose process has ended for another attempt, or ends it.
func (s *Service) giveBack(ctx context.Context, row *functionstore.Run) error {
	was := *row
	if was.Instance == s.instance { // the handler was not called: see writeClaims
		s.queue(row, s.now())
		row.Attempt--
	} else {
		fail(row, lostFailure())
		s.retry(row, s.now(), 0)
	}
	err := s.db.Write(ctx, "invocation reclaim", func(ctx context.Context, tx *store.Tx) error {
		return s.settleTx(ctx, tx, row, was)
	})
	switch {
	case errors.Is(err, store.ErrNotFound): // it was extended meanwhile, or another process was faster
		return nil
	case err != nil:
		return err
	}
	s.log.Info("run of a function reclaimed", "run", row.ID, "attempt", was.Attempt, "state", row.State)
	s.announce([]functionstore.Run{*row})
	return nil
}

func (s *Service) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id] != nil
}
