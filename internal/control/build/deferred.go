package build

import (
	"context"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// stateDeferred is the state of a build that has an id and no steps yet: E2B's builder asks for the id first.
const stateDeferred = "waiting"

// deferredTimeout is how long a deferred build waits for its steps.
const deferredTimeout = time.Hour

// Reserve makes a deferred build, which StartReserved queues.
func (s *Service) Reserve(ctx context.Context, p auth.Principal, req api.BuildRequest) (api.Build, error) {
	if err := req.Validate(); err != nil {
		return api.Build{}, err
	}
	template, made, err := s.templates.Claim(ctx, p, req.Name, req.Global)
	if err != nil {
		return api.Build{}, err
	}
	row := store.Build{
		ID:        string(api.NewBuildID()),
		Workspace: string(p.Workspace),
		Template:  template.ID,
		Name:      template.Name,
		State:     stateDeferred,
		Created:   store.Micros(time.Now()),
	}
	if row.Spec, err = (Spec{BuildRequest: req}).encode(); err != nil {
		return api.Build{}, api.AsError(err)
	}
	err = s.db.Write(
		ctx,
		"build reserve",
		func(ctx context.Context, tx *store.Tx) error {
			uses := quota.Amount{Kind: quota.Builds, N: 1}
			if err := s.quotas.Admit(ctx, tx, p.Workspace, uses); err != nil {
				return err
			}
			return tx.InsertBuild(ctx, &row)
		},
	)
	if err != nil && made {
		err = errors.Join(err, s.templates.Forget(ctx, template.ID))
	}
	if err != nil {
		return api.Build{}, asError(err)
	}
	return view(row), nil
}

// StartReserved queues a deferred build after change has completed its request. Its template gets a new version.
func (s *Service) StartReserved(ctx context.Context, p auth.Principal, id api.BuildID, change func(*Spec)) error {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return err
	}
	if row.State != stateDeferred {
		return api.Errorf(api.WrongState, "build %s has been started already", id)
	}
	spec, err := decodeSpec(row.Spec)
	if err != nil {
		return api.AsError(err)
	}
	change(&spec)
	spec.Replace = true
	if err := spec.check(); err != nil {
		return err
	}
	if err := s.checkSource(ctx, p, spec); err != nil {
		return err
	}
	row.State, row.Hash, row.Created = stateQueued, spec.hash(), store.Micros(time.Now())
	if row.Spec, err = spec.encode(); err != nil {
		return api.AsError(err)
	}
	if spec.Registry != nil {
		s.setSecret(row.ID, spec.Registry)
	}
	err = s.db.Write(ctx, "build launch", func(ctx context.Context, tx *store.Tx) error {
		if err := s.quotas.Admit(ctx, tx, p.Workspace); err != nil { // Reserve has counted it
			return err
		}
		if err := tx.UpdateBuild(ctx, &row, []string{stateDeferred}, "state", "hash", "spec", "created"); err != nil {
			return err
		}
		return s.enqueueJob(ctx, tx, row, 0)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.WrongState, "build %s has been started already", id)
	}
	if err != nil {
		return asError(err)
	}
	s.jobs.Notify()
	return nil
}

// gcDeferred removes deferred builds whose steps never came, and their templates if they have no version.
func (s *Service) gcDeferred(ctx context.Context) error {
	rows, err := s.db.Read().Builds(ctx, store.BuildQuery{States: []string{stateDeferred}})
	if err != nil {
		return err
	}
	var all error
	for _, r := range rows {
		if time.Since(store.Time(r.Created)) < deferredTimeout {
			continue
		}
		err := s.db.Write(
			ctx,
			"build forget",
			func(ctx context.Context, tx *store.Tx) error { return tx.DeleteBuild(ctx, r.ID) },
		)
		all = errors.Join(all, err, s.templates.Forget(ctx, r.Template), s.removeInputs(ctx, r.ID))
	}
	return all
}
