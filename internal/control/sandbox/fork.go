package sandbox

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// treeKey is the metadata key under which a child carries the id of its fork tree.
const treeKey = "fork_tree_id"

// forkPlan is what both kinds of fork ask for.
type forkPlan struct {
	count      int
	tree       api.TreeID
	metadata   map[string]string
	env        map[string]string
	persistent *bool
	ttl        *int64
}

// forkOutcome is what became of a fork.
type forkOutcome struct {
	children []api.Sandbox
	errs     []api.ForkError
	at       time.Time
	pauseMS  int64
}

// Fork copies a sandbox, memory and disk; the parent goes on in its state, a hibernated one is woken
// first. If no child could be made the error of the first is answered.
func (s *Service) Fork(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.ForkRequest,
) (_ api.ForkResponse, err error) {
	defer s.finishVerb("fork", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.ForkResponse{}, err
	}
	f, err := s.fork(ctx, p, id, forkPlan{req.Count, "", req.Metadata, req.Env, req.Persistent, req.TTLSeconds})
	if err != nil {
		return api.ForkResponse{}, err
	}
	return api.ForkResponse{
		ParentID: id,
		Children: f.children,
		Sandbox:  &f.children[0],
		Errors:   f.errs,
		At:       f.at,
		PauseMS:  f.pauseMS,
	}, nil
}

// ForkTree makes several children of one moment under a tree id, which each carries in its metadata.
// Fewer children than asked for come with errors; if there is none the error of the first is answered.
func (s *Service) ForkTree(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.ForkTreeRequest,
) (_ api.ForkTree, err error) {
	defer s.finishVerb("fork tree", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.ForkTree{}, err
	}
	tree := api.NewTreeID()
	f, err := s.fork(ctx, p, id, forkPlan{req.Count, tree, req.Metadata, req.Env, req.Persistent, req.TTLSeconds})
	if err != nil {
		return api.ForkTree{}, err
	}
	return api.ForkTree{
		TreeID:   tree,
		ParentID: id,
		Children: f.children,
		Errors:   f.errs,
		At:       f.at,
		PauseMS:  f.pauseMS,
	}, nil
}

func (s *Service) fork(ctx context.Context, p auth.Principal, id api.SandboxID, ask forkPlan) (forkOutcome, error) {
	if ask.count > s.cfg.MaxFork {
		return forkOutcome{}, api.Errorf(api.Invalid, "count: %d children are too many: use at most %d", ask.count, s.cfg.MaxFork).
			With("field", "count")
	}
	parent, ctx, release, err := s.acquireReady(ctx, p, id, "fork", true)
	if err != nil {
		return forkOutcome{}, err
	}
	defer release()
	rows := s.childRows(&parent, ask)
	for i := range rows {
		_, free, err := s.locks.acquire(ctx, rows[i].ID)
		if err != nil {
			return forkOutcome{}, err
		}
		defer free()
	}
	err = s.db.Write(ctx, "fork begin", func(ctx context.Context, tx *store.Tx) error {
		if err := s.checkQuota(ctx, tx, p, len(rows)); err != nil {
			return err
		}
		for i := range rows {
			if err := tx.InsertSandbox(ctx, &rows[i]); err != nil {
				return err
			}
			if err := s.appendEvents(ctx, tx, &rows[i], newEvent{api.EventCreated, map[string]any{"parent_id": parent.ID}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return forkOutcome{}, err
	}
	forked, err := s.host.Fork(ctx, hostapi.Fork{Parent: machineID(&parent), Children: s.childRequests(rows)})
	if err != nil {
		why := s.operationFailed(ctx, &parent, err, "fork")
		for i := range rows {
			_ = s.abortCreate(ctx, &rows[i], why) // it answers why, which is answered once
		}
		return forkOutcome{}, why
	}
	return s.finishFork(ctx, &parent, ask, rows, forked)
}

// childRows plans the rows of a fork.
func (s *Service) childRows(parent *store.Sandbox, ask forkPlan) []store.Sandbox {
	rows := make([]store.Sandbox, ask.count)
	now := store.Micros(time.Now())
	for i := range rows {
		r := *parent
		r.ID, r.State, r.Owner, r.Parent, r.Tree = string(
			api.NewSandboxID(),
		), string(
			api.Creating,
		), s.instance, parent.ID, string(
			ask.tree,
		)
		r.Created, r.Changed, r.Active, r.Due, r.Ends = now, now, now, 0, 0
		r.Snapshot, r.Reason, r.EndReason, r.EndBy, r.Idempotency = "", "", "", "", ""
		r.GuestIP, r.Tap, r.MAC, r.Generation, r.Phases = "", "", "", 0, "[]"
		r.Metadata = maps.Clone(map[string]string(parent.Metadata))
		delete(r.Metadata, treeKey)
		r.Metadata = mergeMaps(r.Metadata, ask.metadata)
		if ask.tree != "" {
			r.Metadata = mergeMaps(r.Metadata, map[string]string{treeKey: string(ask.tree)})
		}
		r.Env = mergeMaps(parent.Env, ask.env)
		if ask.persistent != nil {
			r.Persistent = *ask.persistent
		}
		if ask.ttl != nil {
			r.TTLSeconds = *ask.ttl
		}
		rows[i] = r
	}
	return rows
}

// childRequests gives what the host is asked for.
func (s *Service) childRequests(rows []store.Sandbox) []hostapi.Child {
	out := make([]hostapi.Child, len(rows))
	for i, r := range rows {
		out[i] = hostapi.Child{
			ID:         machineID(&r),
			Hostname:   r.ID,
			Env:        environment(&r),
			Files:      injectedFiles(&r),
			Persistent: r.Persistent,
			Labels:     s.hostLabels(r.Workspace, r.Injected),
		}
	}
	return out
}

// finishFork writes which children run and takes back the others.
func (s *Service) finishFork(
	ctx context.Context,
	parent *store.Sandbox,
	ask forkPlan,
	rows []store.Sandbox,
	forked []hostapi.ForkResult,
) (forkOutcome, error) {
	f := forkOutcome{at: time.Now().UTC(), children: []api.Sandbox{}}
	var first error
	ids := []string{}
	for i := range rows {
		err := errors.New("the host did not answer for this child")
		if i < len(forked) {
			err = forked[i].Err
		}
		if err == nil {
			err = s.markRunning(ctx, &rows[i], forked[i].Machine)
		}
		if err == nil {
			f.children = append(f.children, s.view(&rows[i]))
			ids = append(ids, rows[i].ID)
			continue
		}
		why := api.AsError(s.abortCreate(ctx, &rows[i], hostError(err, "fork", rows[i].ID)))
		f.errs = append(f.errs, api.ForkError{Index: i, Err: why.Message, Code: why.Code})
		if first == nil {
			first = why
		}
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	s.activity.Touch(parent.ID)
	if m, err := s.host.Get(ctx, machineID(parent)); err == nil { // how long it stood still is a nicety
		parent.Pause = m.Pause.Microseconds()
		f.pauseMS = (parent.Pause + 999) / 1000
	}
	if len(f.children) == 0 {
		return f, first
	}
	events := []newEvent{{api.EventForked, map[string]any{"children": ids}}}
	if ask.tree != "" {
		events = append(events, newEvent{api.EventForkTree, map[string]any{"tree_id": ask.tree, "children": ids}})
	}
	if err := s.setState(ctx, "fork end", parent, api.Status(parent.State), events...); err != nil {
		s.log.Warn("an event of a fork was not written", "sandbox", parent.ID, "err", err)
	}
	return f, nil
}

// Promote makes a sandbox the winner of its tree. With CleanupSiblings the other children are deleted;
// the parent stays.
func (s *Service) Promote(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.PromoteRequest,
) (_ api.Promotion, err error) {
	defer s.finishVerb("promote", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.Promotion{}, err
	}
	r, err := s.row(ctx, p, id)
	if err != nil {
		return api.Promotion{}, err
	}
	tree := string(req.TreeID)
	if tree == "" {
		tree = r.Tree
	}
	switch {
	case tree == "":
		return api.Promotion{}, api.Errorf(api.Invalid, "tree_id: sandbox %s was not made by fork-tree: there is nothing to promote it over", id).
			With("field", "tree_id")
	case tree != r.Tree:
		return api.Promotion{}, api.Errorf(api.Invalid, "tree_id: sandbox %s is not of tree %s: leave it out", id, tree).
			With("field", "tree_id")
	}
	s.activity.Touch(r.ID)
	out := api.Promotion{
		Winner:   id,
		TreeID:   api.TreeID(tree),
		Deleted:  []api.SandboxID{},
		Failures: map[api.SandboxID]string{},
	}
	if req.CleanupSiblings {
		siblings, err := s.db.Read().Sandboxes(ctx, store.SandboxQuery{Workspace: r.Workspace, Tree: tree})
		if err != nil {
			return api.Promotion{}, err
		}
		for _, sib := range siblings {
			if sib.ID == r.ID {
				continue
			}
			s.locks.interrupt(sib.ID, errDeleted)
			why := endCause{reason: EndedPromotion, by: p.KeyPrefix, message: "sandbox " + r.ID + " won its fork tree"}
			if err := s.endSandbox(ctx, sib.ID, why, nil); err != nil {
				out.Failures[api.SandboxID(sib.ID)] = api.AsError(err).Message
				continue
			}
			out.Deleted = append(out.Deleted, api.SandboxID(sib.ID))
		}
	}
	err = s.db.Write(ctx, "promote", func(ctx context.Context, tx *store.Tx) error {
		return s.appendEvents(
			ctx,
			tx,
			&r,
			newEvent{api.EventPromoted, map[string]any{"tree_id": tree, "deleted": len(out.Deleted)}},
		)
	})
	if err != nil {
		return api.Promotion{}, err
	}
	s.changes.notify(r.ID)
	return out, nil
}
