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

// offspring is what both kinds of fork ask for.
type offspring struct {
	count      int
	tree       api.TreeID
	metadata   map[string]string
	env        map[string]string
	persistent *bool
	ttl        *int64
}

// family is what became of a fork.
type family struct {
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
) (_ api.ForkAnswer, err error) {
	defer s.watch("fork", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.ForkAnswer{}, err
	}
	f, err := s.fork(ctx, p, id, offspring{req.Count, "", req.Metadata, req.Env, req.Persistent, req.TTLSeconds})
	if err != nil {
		return api.ForkAnswer{}, err
	}
	return api.ForkAnswer{
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
	defer s.watch("fork tree", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.ForkTree{}, err
	}
	tree := api.NewTreeID()
	f, err := s.fork(ctx, p, id, offspring{req.Count, tree, req.Metadata, req.Env, req.Persistent, req.TTLSeconds})
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

func (s *Service) fork(ctx context.Context, p auth.Principal, id api.SandboxID, ask offspring) (family, error) {
	if ask.count > s.cfg.MaxFork {
		return family{}, api.Errorf(api.Invalid, "count: %d children are too many: use at most %d", ask.count, s.cfg.MaxFork).
			With("field", "count")
	}
	parent, ctx, release, err := s.ready(ctx, p, id, "fork", true)
	if err != nil {
		return family{}, err
	}
	defer release()
	rows := s.children(&parent, ask)
	for i := range rows {
		_, free, err := s.locks.take(ctx, rows[i].ID)
		if err != nil {
			return family{}, err
		}
		defer free()
	}
	err = s.db.Write(ctx, "fork begin", func(ctx context.Context, tx *store.Tx) error {
		if err := s.admit(ctx, tx, p, len(rows)); err != nil {
			return err
		}
		for i := range rows {
			if err := tx.InsertSandbox(ctx, &rows[i]); err != nil {
				return err
			}
			if err := s.append(ctx, tx, &rows[i], occurrence{api.EventCreated, map[string]any{"parent_id": parent.ID}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return family{}, err
	}
	forked, err := s.host.Fork(ctx, hostapi.Fork{Parent: machineID(&parent), Children: s.orders(rows)})
	if err != nil {
		why := s.failed(ctx, &parent, err, "fork")
		for i := range rows {
			_ = s.never(ctx, &rows[i], why) // it answers why, which is answered once
		}
		return family{}, why
	}
	return s.born(ctx, &parent, ask, rows, forked)
}

// children plans the rows of a fork.
func (s *Service) children(parent *store.Sandbox, ask offspring) []store.Sandbox {
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
		r.Metadata = merge(r.Metadata, ask.metadata)
		if ask.tree != "" {
			r.Metadata = merge(r.Metadata, map[string]string{treeKey: string(ask.tree)})
		}
		r.Env = merge(parent.Env, ask.env)
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

// orders gives what the host is asked for.
func (s *Service) orders(rows []store.Sandbox) []hostapi.Child {
	out := make([]hostapi.Child, len(rows))
	for i, r := range rows {
		out[i] = hostapi.Child{
			ID:       machineID(&r),
			Hostname: r.ID,
			Env:      environment(&r),
			Files:    files(&r),
			Keep:     r.Persistent,
			Labels:   s.labels(r.Workspace, r.Surroundings),
		}
	}
	return out
}

// born writes which children run and takes back the others.
func (s *Service) born(
	ctx context.Context,
	parent *store.Sandbox,
	ask offspring,
	rows []store.Sandbox,
	forked []hostapi.Forked,
) (family, error) {
	f := family{at: time.Now().UTC(), children: []api.Sandbox{}}
	var first error
	ids := []string{}
	for i := range rows {
		err := errors.New("the host did not answer for this child")
		if i < len(forked) {
			err = forked[i].Err
		}
		if err == nil {
			err = s.runs(ctx, &rows[i], forked[i].Machine)
		}
		if err == nil {
			f.children = append(f.children, s.view(&rows[i]))
			ids = append(ids, rows[i].ID)
			continue
		}
		why := api.AsError(s.never(ctx, &rows[i], hostError(err, "fork", rows[i].ID)))
		f.errs = append(f.errs, api.ForkError{Index: i, Err: why.Message, Code: why.Code})
		if first == nil {
			first = why
		}
	}
	ctx, cancel := firm(ctx)
	defer cancel()
	s.used.Touch(parent.ID)
	if m, err := s.host.Get(ctx, machineID(parent)); err == nil { // how long it stood still is a nicety
		parent.Pause = m.Pause.Microseconds()
		f.pauseMS = (parent.Pause + 999) / 1000
	}
	if len(f.children) == 0 {
		return f, first
	}
	events := []occurrence{{api.EventForked, map[string]any{"children": ids}}}
	if ask.tree != "" {
		events = append(events, occurrence{api.EventForkTree, map[string]any{"tree_id": ask.tree, "children": ids}})
	}
	if err := s.become(ctx, "fork end", parent, api.Status(parent.State), events...); err != nil {
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
	defer s.watch("promote", time.Now(), &err)
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
	s.used.Touch(r.ID)
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
			why := cause{reason: EndedPromotion, by: p.KeyPrefix, message: "sandbox " + r.ID + " won its fork tree"}
			if err := s.end(ctx, sib.ID, why, nil); err != nil {
				out.Failures[api.SandboxID(sib.ID)] = api.AsError(err).Message
				continue
			}
			out.Deleted = append(out.Deleted, api.SandboxID(sib.ID))
		}
	}
	err = s.db.Write(ctx, "promote", func(ctx context.Context, tx *store.Tx) error {
		return s.append(
			ctx,
			tx,
			&r,
			occurrence{api.EventPromoted, map[string]any{"tree_id": tree, "deleted": len(out.Deleted)}},
		)
	})
	if err != nil {
		return api.Promotion{}, err
	}
	s.news.tell(r.ID)
	return out, nil
}
