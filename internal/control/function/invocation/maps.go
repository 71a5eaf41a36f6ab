package invocation

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// Bounds of maps.
const (
	defaultMapRuns = 10
	maxMapBytes    = 64 << 20        // of all inputs
	progressSleep  = 2 * time.Second // between looks at runs that other processes may have ended
)

// Map invokes a function, by id or name, for many inputs, and yields each run as it ends.
//
// Some of the inputs are under way at a time. A last call of yield has no run. An error before the first call means
// that nothing was invoked. If the caller goes away (ctx ends, or yield returns an error), the runs go on.
func (s *Service) Map(
	ctx context.Context,
	p auth.Principal,
	fn string,
	req api.MapRequest,
	yield func(api.MapProgress) error,
) error {
	if err := req.Validate(); err != nil {
		return err
	}
	row, pol, version, err := s.target(ctx, p, fn, req.Alias, req.Version)
	if err != nil {
		return api.AsError(err)
	}
	bytes := 0
	for _, input := range req.Inputs {
		if len(input) > pol.payload {
			return tooLarge("inputs", len(input), pol.payload)
		}
		bytes += len(input)
	}
	if bytes > maxMapBytes {
		return tooLarge("inputs", bytes, maxMapBytes)
	}
	atOnce := req.Concurrency
	if atOnce == 0 {
		atOnce = pol.concurrency
	}
	if atOnce == 0 {
		atOnce = defaultMapRuns
	}
	now := s.now()
	runs := make([]functionstore.Run, len(req.Inputs))
	for i, input := range req.Inputs {
		runs[i] = newRun(&row, pol, function.OriginMap, input, now)
		runs[i].Version, runs[i].Alias, runs[i].Batch, runs[i].Place = version, req.Alias, runs[0].ID, int64(i)
		if i >= atOnce {
			runs[i].State = functionstore.RunHeld
		}
	}
	happened, stop := s.watchers.watch(runs[0].ID)
	defer stop()
	err = s.db.Write(ctx, "invocation map", func(ctx context.Context, tx *store.Tx) error {
		in := functionstore.In(tx)
		if err := s.admit(ctx, in, row.Workspace, len(runs)); err != nil {
			return err
		}
		return in.InsertRuns(ctx, runs)
	})
	if err != nil {
		return api.AsError(err)
	}
	s.wake()
	return s.follows(ctx, runs, happened, yield)
}

// follows yields the runs of a map as they end.
func (s *Service) follows(
	ctx context.Context,
	runs []functionstore.Run,
	happened <-chan struct{},
	yield func(api.MapProgress) error,
) error {
	in := functionstore.In(s.db.Read())
	told := map[string]bool{}
	progress := api.MapProgress{Total: len(runs)}
	for {
		ended, err := in.BatchRuns(ctx, runs[0].ID)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("progress of a map was not read; it is tried again", "err", err)
		}
		for _, e := range ended {
			if told[e.ID] {
				continue
			}
			run, err := in.Run(ctx, e.ID)
			if err != nil {
				break
			}
			told[e.ID] = true
			v, index := function.View(&run), int(run.Place)
			progress.Done++
			if v.Status != api.RunSuccess {
				progress.Errors++
			}
			progress.Index, progress.Run = &index, &v
			if err := yield(progress); err != nil {
				return err
			}
		}
		if progress.Done == progress.Total {
			progress.Index, progress.Run = nil, nil
			return yield(progress)
		}
		timer := time.NewTimer(progressSleep)
		select {
		case <-ctx.Done():
		case <-happened:
		case <-timer.C:
		}
		timer.Stop()
		if err := context.Cause(ctx); err != nil {
			return api.AsError(errors.Join(err))
		}
	}
}
