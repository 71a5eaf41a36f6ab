package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// compare compares store and host now, when told to, and now and then.
func (s *Service) compare(ctx context.Context, behind <-chan struct{}) {
	orphans := orphanage{}
	t := time.NewTicker(s.cfg.Compare)
	defer t.Stop()
	for {
		if err := s.reconcile(ctx, orphans); err != nil && ctx.Err() == nil {
			s.log.Warn("comparing store and host failed; it is tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-behind:
		case <-t.C:
		}
	}
}

// orphanage is when what nobody owns was seen first.
type orphanage map[string]time.Time

// overdue tells whether an orphan was seen long enough ago to be removed.
func (o orphanage) overdue(id string, grace time.Duration) bool {
	first, ok := o[id]
	if !ok {
		first = time.Now()
		o[id] = first
	}
	return time.Since(first) >= grace
}

// Reconcile compares store and host once: what has no machine gets its tombstone, what was under way in
// a process that is gone is finished or taken back, states follow the host, and machines and snapshots
// that nobody owns are removed. Run does so all the time.
func (s *Service) Reconcile(ctx context.Context) error { return s.reconcile(ctx, orphanage{}) }

func (s *Service) reconcile(ctx context.Context, orphans orphanage) error {
	// The host is asked first: a machine that is listed had its row by then.
	machines, err := s.host.List(ctx)
	if err != nil {
		return hostError(err, "list machines of", "the host")
	}
	rows, err := s.db.Read().Sandboxes(ctx, store.SandboxQuery{})
	if err != nil {
		return err
	}
	known := map[string]hostapi.Machine{}
	for _, m := range machines {
		known[string(m.ID)] = m
	}
	var all error
	owned := map[string]bool{}
	for _, r := range rows {
		owned[r.ID] = true
		m, ok := known[r.ID]
		if !ok || api.Status(r.State) != statusOf(m.State) || r.Persistent != m.Keep || !m.Egress.Equal(policyOf(&r)) {
			all = errors.Join(all, s.settleOne(ctx, r.ID))
		}
	}
	for _, m := range machines {
		if !owned[string(m.ID)] &&
			m.Labels[hostapi.LabelKind] == "" { // others look after machines that are no sandbox's
			all = errors.Join(all, s.orphan(ctx, m, orphans))
		}
	}
	return errors.Join(all, s.reconcileSnapshots(ctx, orphans))
}

// statusOf gives the state that a machine's state means.
func statusOf(state hostapi.State) api.Status {
	switch state {
	case hostapi.Creating:
		return api.Creating
	case hostapi.Running:
		return api.Running
	case hostapi.Paused:
		return api.Paused
	case hostapi.Hibernated:
		return api.Hibernated
	case hostapi.Failed:
		return api.Failed
	}
	return api.Failed
}

// settleOne settles a sandbox that nothing is done to just now.
func (s *Service) settleOne(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.try(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	r, err := s.db.Read().Sandbox(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.elsewhere(&r) {
		return nil
	}
	return s.settle(ctx, &r, hostapi.Event{})
}

// elsewhere tells whether another process on a shared store may be at work on a sandbox.
func (s *Service) elsewhere(r *store.Sandbox) bool {
	switch api.Status(r.State) {
	case api.Creating, api.Hibernating, api.Waking, api.Stopping:
		return s.db.Shared() && r.Owner != s.instance && time.Since(store.Time(r.Changed)) < s.cfg.ForeignGrace
	case api.Running, api.Paused, api.Hibernated, api.Failed, api.Deleted:
	}
	return false
}

// settle brings a sandbox to what its host says of its machine. said is the event with which the
// host told that something happened, if it did. The lock is held.
func (s *Service) settle(ctx context.Context, r *store.Sandbox, said hostapi.Event) error {
	status := api.Status(r.State)
	if status == api.Stopping {
		return s.finish(ctx, r, r.Reason, nil)
	}
	m, err := s.host.Get(ctx, machineID(r))
	if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hostError(err, "look at", r.ID)
	}
	missing := err != nil
	if status == api.Creating {
		return s.settleCreating(ctx, r, m, missing)
	}
	if said.Reason == "" {
		said.Reason = m.Reason
	}
	if missing || m.State == hostapi.Failed && !r.Persistent {
		return s.died(ctx, r, said)
	}
	if m.Keep != r.Persistent {
		if err := s.host.SetKeep(ctx, m.ID, r.Persistent); err != nil {
			return hostError(err, "change the lifecycle of", r.ID)
		}
	}
	if policy := policyOf(r); !m.Egress.Equal(policy) {
		if err := s.host.SetEgress(ctx, m.ID, policy); err != nil {
			return hostError(err, "change the network of", r.ID)
		}
	}
	to := statusOf(m.State)
	if to == api.Creating || to == status {
		return nil
	}
	fill(r, m)
	var events []occurrence
	switch to {
	case api.Failed:
		if r.Reason = said.Reason; r.Reason == "" {
			r.Reason = "its monitor died"
		}
		events = []occurrence{
			{api.EventMachineDied, map[string]any{"reason": said.Reason}},
			{api.EventFailed, map[string]any{"reason": r.Reason}},
		}
	case api.Hibernated:
		events = []occurrence{{api.EventHibernated, nil}}
	case api.Paused:
		events = []occurrence{{api.EventPaused, nil}}
	case api.Running:
		r.Reason = ""
		events = []occurrence{{api.EventRunning, nil}}
		if status == api.Waking || status == api.Hibernated {
			events = []occurrence{{api.EventWoken, nil}}
		}
	case api.Creating, api.Hibernating, api.Waking, api.Stopping, api.Deleted:
	}
	return s.become(ctx, "settle", r, to, events...)
}

// settleCreating finishes a create whose process is gone. Only a caller with an idempotency key can ask
// for its sandbox again; any other has lost the id, and the machine with it.
func (s *Service) settleCreating(ctx context.Context, r *store.Sandbox, m hostapi.Machine, missing bool) error {
	if !missing && m.State == hostapi.Running && r.Idempotency != "" && r.EndReason == "" {
		return s.runs(ctx, r, m)
	}
	r.EndReason = string(EndedNeverBegan)
	return s.finish(ctx, r, "its creation was interrupted", nil)
}

// died ends a sandbox whose machine is gone for good.
func (s *Service) died(ctx context.Context, r *store.Sandbox, said hostapi.Event) error {
	why := deathOf(said)
	err := s.db.Write(ctx, "died", func(ctx context.Context, tx *store.Tx) error {
		return s.append(ctx, tx, r, occurrence{api.EventMachineDied, map[string]any{"reason": said.Reason}})
	})
	if err != nil {
		return err
	}
	return s.endLocked(ctx, r, why)
}

// deathOf gives the cause of an end from what the host said of it, if anything.
func deathOf(said hostapi.Event) cause {
	switch {
	case said.OutOfMemory:
		return cause{
			reason:  EndedMemory,
			message: "its machine ran out of memory: " + said.Reason,
			console: said.Console,
		}
	case said.Reason != "":
		return cause{reason: EndedCrash, message: "its machine died: " + said.Reason, console: said.Console}
	}
	return cause{
		reason:  EndedHostLost,
		message: "its machine was not on its host any more: the host was restarted or lost it",
		console: said.Console,
	}
}

// amend puts what the host says of a death into the tombstone of a sandbox whose machine was missed
// before the host's word came.
func (s *Service) amend(ctx context.Context, said hostapi.Event) error {
	why := deathOf(said)
	if said.Type != "died" || why.reason == EndedHostLost {
		return nil
	}
	t, err := s.db.Read().Tombstone(ctx, string(said.Machine))
	if err == nil && t.Reason == string(EndedHostLost) {
		t.Reason, t.Message = string(why.reason), why.message
		if t.Console == "" {
			t.Console = activity.Printable(why.console)
		}
		err = s.db.Write(ctx, "amend", func(ctx context.Context, tx *store.Tx) error {
			return tx.AmendTombstone(ctx, &t, string(EndedHostLost))
		})
	}
	if errors.Is(err, store.ErrNotFound) {
		return nil // nobody knew it, or somebody amended it
	}
	return err
}

// orphan removes a machine without a row. A kept machine of another store is taken in instead: a user's
// data must not die of a lost database.
func (s *Service) orphan(ctx context.Context, m hostapi.Machine, orphans orphanage) error {
	id := string(m.ID)
	if !orphans.overdue(id, s.cfg.OrphanGrace) {
		return nil
	}
	ctx, release, ok := s.locks.try(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	if _, err := s.db.Read().Sandbox(ctx, id); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	delete(orphans, id)
	if m.Keep && m.Labels["store"] != "" && m.Labels["store"] != s.db.ID() && m.Labels["workspace"] != "" {
		return s.takeIn(ctx, m)
	}
	s.log.Warn("a machine that nobody owns is destroyed", "machine", id)
	if err := s.host.Destroy(ctx, m.ID, "nobody owns it"); err != nil {
		return hostError(err, "destroy", id)
	}
	return nil
}

// takeIn makes a row for a kept machine that another store knew.
func (s *Service) takeIn(ctx context.Context, m hostapi.Machine) error {
	now := store.Micros(time.Now())
	r := &store.Sandbox{
		ID:           string(m.ID),
		Workspace:    m.Labels["workspace"],
		State:        string(statusOf(m.State)),
		Owner:        s.instance,
		Template:     string(m.Template),
		Snapshot:     string(m.Snapshot),
		Parent:       string(m.Parent),
		Phases:       "[]",
		Surroundings: m.Labels[surroundingsLabel],
		Persistent:   true,
		OnEnd:        string(api.TimeoutDelete),
		Created:      store.Micros(m.Created),
		Changed:      now,
		Active:       now,
		Reason:       m.Reason,
	}
	if err := setNetwork(r, api.Network{AllowOut: m.Egress.Allow, DenyOut: m.Egress.Deny, DenyOthers: m.Egress.DenyOthers}); err != nil {
		return err
	}
	fill(r, m)
	s.log.Warn("a kept machine of another store is taken in", "machine", m.ID, "workspace", r.Workspace)
	return s.db.Write(ctx, "take in", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutWorkspace(ctx, &store.Workspace{ID: r.Workspace, Name: r.Workspace, Created: now}); err != nil {
			return err
		}
		if err := tx.InsertSandbox(ctx, r); err != nil {
			return err
		}
		return s.append(ctx, tx, r, occurrence{api.EventMachineAdopted, map[string]any{"store": m.Labels["store"]}})
	})
}

// reconcileSnapshots compares the registry with what the host has.
func (s *Service) reconcileSnapshots(ctx context.Context, orphans orphanage) error {
	have, err := s.host.Snapshots(ctx)
	if err != nil {
		return hostError(err, "list snapshots of", "the host")
	}
	rows, err := s.db.Read().Snapshots(ctx, store.SnapshotQuery{})
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, h := range have {
		there[string(h.ID)] = true
	}
	var all error
	owned := map[string]bool{}
	for _, row := range rows {
		owned[row.ID] = true
		if row.State != store.SnapshotReady || !there[row.ID] {
			all = errors.Join(all, s.settleSnapshot(ctx, row))
		}
	}
	for _, h := range have {
		// One of another store may be all that is left of somebody's work: it is left alone.
		id := string(h.ID)
		if owned[id] || h.Labels[hostapi.LabelKind] != "" || h.Labels["store"] != s.db.ID() ||
			!orphans.overdue(id, s.cfg.OrphanGrace) {
			continue
		}
		if _, err := s.db.Read().Snapshot(ctx, id); !errors.Is(err, store.ErrNotFound) {
			continue
		}
		delete(orphans, id)
		s.log.Warn("a snapshot that nobody owns is deleted", "snapshot", id)
		if err := s.host.DeleteSnapshot(ctx, h.ID); err != nil && !errors.Is(err, hostapi.ErrNotFound) {
			all = errors.Join(all, hostError(err, "delete snapshot", id))
		}
	}
	return all
}

// settleSnapshot takes back one that was being made or deleted by a process that is gone, and drops one
// that no host has.
func (s *Service) settleSnapshot(ctx context.Context, row store.Snapshot) error {
	ctx, release, ok := s.locks.try(ctx, row.ID)
	if !ok {
		return nil
	}
	defer release()
	snap, err := s.db.Read().Snapshot(ctx, row.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if snap.State == store.SnapshotReady && row.State != store.SnapshotReady {
		return nil // it was finished meanwhile
	}
	if snap.State == store.SnapshotReady { // it may be younger than the host's answer
		have, err := s.host.Snapshots(ctx)
		if err != nil {
			return hostError(err, "list snapshots of", "the host")
		}
		if slices.ContainsFunc(have, func(h hostapi.Snapshot) bool { return string(h.ID) == snap.ID }) {
			return nil
		}
		s.log.Warn("a snapshot that its host does not know any more is dropped", "snapshot", snap.ID)
		return s.removeSnapshot(ctx, &snap)
	}
	if s.db.Shared() && snap.Owner != s.instance && time.Since(store.Time(snap.Created)) < s.cfg.ForeignGrace {
		return nil
	}
	return s.removeSnapshot(ctx, &snap)
}
