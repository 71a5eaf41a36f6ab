package sandbox

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// treeKey is the metadata key under which a child has the id of its fork tree.
const treeKey = "fork_tree_id"

// forkPlan is what both kinds of fork ask for.
type forkPlan struct {
	count      int
	tree       api.TreeID // "": not a fork tree
	metadata   map[string]string
	env        map[string]string
	persistent *bool
	ttl        *int64
}

// forkOutcome is the result of a fork.
type forkOutcome struct {
	children []api.Sandbox
	errs     []api.ForkError
	at       time.Time
	pauseMS  int64
}

// Fork copies a sandbox, memory and disk. The parent keeps its state; a hibernated parent is woken first. If
// no child could be made, Fork returns the error of the first.
func (s *Service) Fork(
	ctx context.Context, p auth.Principal, id api.SandboxID, req api.ForkRequest,
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

// ForkTree makes several children of one moment under a tree id, which each has in its metadata. If some
// children could not be made, the result has their errors; if none could, ForkTree returns the first error.
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
		return forkOutcome{}, api.Errorf(
			api.Invalid, "count: %d children are too many: use at most %d", ask.count, s.cfg.MaxFork).
			With("field", "count")
	}
	parent, ctx, release, err := s.acquireReady(ctx, p, id, "fork", true)
	if err != nil {
		return forkOutcome{}, err
	}
	defer release()
	children := s.planChildren(&parent, ask)
	for i := range children {
		_, free, err := s.locks.Acquire(ctx, string(children[i].ID))
		if err != nil {
			return forkOutcome{}, err
		}
		defer free()
	}
	err = s.db.Write(ctx, "fork begin", func(ctx context.Context, tx *store.Tx) error {
		uses := quota.Times(len(children), usesOf(&parent))
		if err := s.quotas.Admit(ctx, tx, parent.Workspace, uses...); err != nil {
			return err
		}
		for i := range children {
			if err := tx.InsertSandbox(ctx, children[i].row()); err != nil {
				return err
			}
			event := newEvent{api.EventCreated, map[string]any{"parent_id": parent.ID}}
			if err := s.appendEvents(ctx, tx, &children[i], event); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return forkOutcome{}, cmp.Or(hosterror.Interruption(ctx), err)
	}
	forked, err := s.host.Fork(ctx, hostapi.Fork{Parent: parent.machineID(), Children: s.childRequests(children)})
	if err != nil {
		why := s.operationFailed(ctx, &parent, err, "fork")
		for i := range children {
			_ = s.abortCreate(ctx, &children[i], why) // returns why, which is returned once
		}
		return forkOutcome{}, why
	}
	return s.finishFork(ctx, &parent, ask, children, forked)
}

// planChildren returns the records of the children of a fork.
func (s *Service) planChildren(parent *record, ask forkPlan) []record {
	children := make([]record, ask.count)
	at := now()
	for i := range children {
		r := *parent
		r.ID, r.State, r.Instance, r.Parent, r.Tree = api.NewSandboxID(), api.Creating, s.instance, parent.ID, ask.tree
		r.Created, r.Changed, r.Active, r.Due, r.Ends = at, at, at, time.Time{}, time.Time{}
		r.Snapshot, r.Reason, r.EndReason, r.EndBy, r.IdempotencyKey = "", "", "", "", ""
		r.GuestIP, r.Tap, r.MAC, r.Generation, r.Phases, r.DiskBytes = "", "", "", 0, nil, 0
		r.Metadata = maps.Clone(parent.Metadata)
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
			r.TTL = time.Duration(*ask.ttl) * time.Second
		}
		children[i] = r
	}
	return children
}

// childRequests returns what the host is asked for.
func (s *Service) childRequests(children []record) []hostapi.Child {
	out := make([]hostapi.Child, len(children))
	for i := range children {
		r := &children[i]
		out[i] = hostapi.Child{
			ID:         r.machineID(),
			Hostname:   string(r.ID),
			Env:        r.environment(),
			Files:      r.injectedFiles(),
			Persistent: r.Persistent,
			Labels:     s.hostLabels(r),
		}
	}
	return out
}

// finishFork writes which children run and removes the others.
func (s *Service) finishFork(
	ctx context.Context,
	parent *record,
	ask forkPlan,
	children []record,
	forked []hostapi.ForkResult,
) (forkOutcome, error) {
	f := forkOutcome{at: time.Now().UTC(), children: []api.Sandbox{}}
	var first error
	ids := []api.SandboxID{}
	for i := range children {
		r := &children[i]
		var err error
		switch {
		case i >= len(forked):
			err = errors.New("the host returned no result for this child")
		case forked[i].Failure != nil:
			err = forked[i].Err()
		default:
			err = s.markRunning(ctx, r, forked[i].Machine)
		}
		if err == nil {
			f.children = append(f.children, s.view(r))
			ids = append(ids, r.ID)
			continue
		}
		err = cmp.Or(hosterror.Interruption(ctx), hosterror.Wrap(err, "fork", string(r.ID)))
		why := api.AsError(s.abortCreate(ctx, r, err))
		f.errs = append(f.errs, api.ForkError{Index: i, Err: why.Message, Code: why.Code})
		if first == nil {
			first = why
		}
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	s.activity.Touch(string(parent.ID))
	if m, err := s.host.Get(ctx, parent.machineID()); err == nil { // without it, only the pause is not known
		parent.Pause = m.Pause
		f.pauseMS = milliseconds(m.Pause)
	}
	if len(f.children) == 0 {
		return f, first
	}
	events := []newEvent{{api.EventForked, map[string]any{"children": ids}}}
	if ask.tree != "" {
		events = append(events, newEvent{api.EventForkTree, map[string]any{"tree_id": ask.tree, "children": ids}})
	}
	if err := s.setState(ctx, "fork end", parent, parent.State, events...); err != nil {
		s.log.Warn("an event of a fork was not written", "sandbox", parent.ID, "err", err)
	}
	return f, nil
}

// Promote makes a sandbox the winner of its fork tree. With CleanupSiblings the other children are deleted;
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
	r, err := s.findOwn(ctx, p, id)
	if err != nil {
		return api.Promotion{}, err
	}
	tree := req.TreeID
	if tree == "" {
		tree = r.Tree
	}
	switch {
	case tree == "":
		return api.Promotion{}, api.Errorf(api.Invalid,
			"tree_id: sandbox %s was not made by fork-tree: there is nothing to promote it over", id).
			With("field", "tree_id")
	case tree != r.Tree:
		return api.Promotion{}, api.Errorf(
			api.Invalid, "tree_id: sandbox %s is not of tree %s: leave it out", id, tree).With("field", "tree_id")
	}
	s.activity.Touch(string(r.ID))
	out := api.Promotion{Winner: id, TreeID: tree, Deleted: []api.SandboxID{}, Failures: map[api.SandboxID]string{}}
	if req.CleanupSiblings {
		if err := s.deleteSiblings(ctx, p, &r, &out); err != nil {
			return api.Promotion{}, err
		}
	}
	err = s.db.Write(ctx, "promote", func(ctx context.Context, tx *store.Tx) error {
		return s.appendEvents(ctx, tx, &r,
			newEvent{api.EventPromoted, map[string]any{"tree_id": tree, "deleted": len(out.Deleted)}})
	})
	if err != nil {
		return api.Promotion{}, err
	}
	s.events.Notify(r.ID)
	return out, nil
}

// deleteSiblings deletes the other children of the winner's fork tree.
func (s *Service) deleteSiblings(ctx context.Context, p auth.Principal, r *record, out *api.Promotion) error {
	siblings, err := s.loadAll(ctx, store.SandboxQuery{Workspace: string(r.Workspace), Tree: string(out.TreeID)})
	if err != nil {
		return err
	}
	why := endCause{reason: EndedPromotion, by: p.KeyPrefix, message: "sandbox " + string(r.ID) + " won its fork tree"}
	for _, sib := range siblings {
		if sib.ID == r.ID {
			continue
		}
		if err := s.endSandbox(ctx, sib.ID, why); err != nil {
			out.Failures[sib.ID] = api.AsError(err).Message
			continue
		}
		out.Deleted = append(out.Deleted, sib.ID)
	}
	return nil
}
