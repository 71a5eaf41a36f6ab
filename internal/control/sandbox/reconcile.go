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

// reconcileLoop compares store and host now, when told to, and now and then.
func (s *Service) reconcileLoop(ctx context.Context, behind <-chan struct{}) {
	orphans := firstSeen{}
	t := time.NewTicker(s.cfg.ReconcileInterval)
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

// firstSeen is when what nobody owns was seen first.
type firstSeen map[string]time.Time

// overdue tells whether an orphan was seen long enough ago to be removed.
func (o firstSeen) overdue(id string, grace time.Duration) bool {
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
func (s *Service) Reconcile(ctx context.Context) error { return s.reconcile(ctx, firstSeen{}) }

func (s *Service) reconcile(ctx context.Context, orphans firstSeen) error {
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
		if !ok || api.Status(r.State) != statusOf(m.State) || r.Persistent != m.Persistent || !m.Egress.Equal(policyOf(&r)) {
			all = errors.Join(all, s.reconcileSandbox(ctx, r.ID))
		}
	}
	for _, m := range machines {
		if !owned[string(m.ID)] &&
			m.Labels[hostapi.LabelKind] == "" { // others look after machines that are no sandbox's
			all = errors.Join(all, s.removeOrphan(ctx, m, orphans))
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

// reconcileSandbox settles a sandbox that nothing is done to just now.
func (s *Service) reconcileSandbox(ctx context.Context, id string) error {
	ctx, release, ok := s.locks.tryAcquire(ctx, id)
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
	if s.ownedElsewhere(&r) {
		return nil
	}
	return s.reconcileRow(ctx, &r, hostapi.Event{})
}

// ownedElsewhere tells whether another process on a shared store may be at work on a sandbox.
func (s *Service) ownedElsewhere(r *store.Sandbox) bool {
	switch api.Status(r.State) {
	case api.Creating, api.Hibernating, api.Waking, api.Stopping:
		return s.db.Shared() && r.Owner != s.instance && time.Since(store.Time(r.Changed)) < s.cfg.ForeignOwnerGrace
	case api.Running, api.Paused, api.Hibernated, api.Failed, api.Deleted:
	}
	return false
}

// reconcileRow brings a sandbox to what its host says of its machine. said is the event with which the
// host told that something happened, if it did. The lock is held.
func (s *Service) reconcileRow(ctx context.Context, r *store.Sandbox, said hostapi.Event) error {
	status := api.Status(r.State)
	if status == api.Stopping {
		return s.finishDelete(ctx, r, r.Reason, nil)
	}
	m, err := s.host.Get(ctx, machineID(r))
	if err != nil && !errors.Is(err, hostapi.ErrNotFound) {
		return hostError(err, "look at", r.ID)
	}
	missing := err != nil
	if status == api.Creating {
		return s.finishInterruptedCreate(ctx, r, m, missing)
	}
	if said.Reason == "" {
		said.Reason = m.Reason
	}
	if missing || m.State == hostapi.Failed && !r.Persistent {
		return s.endDead(ctx, r, said)
	}
	if m.Persistent != r.Persistent {
		if err := s.host.SetPersistent(ctx, m.ID, r.Persistent); err != nil {
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
	applyMachine(r, m)
	var events []newEvent
	switch to {
	case api.Failed:
		if r.Reason = said.Reason; r.Reason == "" {
			r.Reason = "its monitor died"
		}
		events = []newEvent{
			{api.EventMachineDied, map[string]any{"reason": said.Reason}},
			{api.EventFailed, map[string]any{"reason": r.Reason}},
		}
	case api.Hibernated:
		events = []newEvent{{api.EventHibernated, nil}}
	case api.Paused:
		events = []newEvent{{api.EventPaused, nil}}
	case api.Running:
		r.Reason = ""
		events = []newEvent{{api.EventRunning, nil}}
		if status == api.Waking || status == api.Hibernated {
			events = []newEvent{{api.EventWoken, nil}}
		}
	case api.Creating, api.Hibernating, api.Waking, api.Stopping, api.Deleted:
	}
	return s.setState(ctx, "settle", r, to, events...)
}

// finishInterruptedCreate finishes a create whose process is gone. Only a caller with an idempotency key can ask
// for its sandbox again; any other has lost the id, and the machine with it.
func (s *Service) finishInterruptedCreate(ctx context.Context, r *store.Sandbox, m hostapi.Machine, missing bool) error {
	if !missing && m.State == hostapi.Running && r.Idempotency != "" && r.EndReason == "" {
		return s.markRunning(ctx, r, m)
	}
	r.EndReason = string(EndedCreateFailed)
	return s.finishDelete(ctx, r, "its creation was interrupted", nil)
}

// endDead ends a sandbox whose machine is gone for good.
func (s *Service) endDead(ctx context.Context, r *store.Sandbox, said hostapi.Event) error {
	why := causeOfDeath(said)
	err := s.db.Write(ctx, "died", func(ctx context.Context, tx *store.Tx) error {
		return s.appendEvents(ctx, tx, r, newEvent{api.EventMachineDied, map[string]any{"reason": said.Reason}})
	})
	if err != nil {
		return err
	}
	return s.endLocked(ctx, r, why)
}

// causeOfDeath gives the cause of an end from what the host said of it, if anything.
func causeOfDeath(said hostapi.Event) endCause {
	switch {
	case said.OutOfMemory:
		return endCause{
			reason:  EndedOutOfMemory,
			message: "its machine ran out of memory: " + said.Reason,
			console: said.Console,
		}
	case said.Reason != "":
		return endCause{reason: EndedCrash, message: "its machine died: " + said.Reason, console: said.Console}
	}
	return endCause{
		reason:  EndedHostLost,
		message: "its machine was not on its host any more: the host was restarted or lost it",
		console: said.Console,
	}
}

// amendTombstone puts what the host says of a death into the tombstone of a sandbox whose machine was missed
// before the host's word came.
func (s *Service) amendTombstone(ctx context.Context, said hostapi.Event) error {
	why := causeOfDeath(said)
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

// removeOrphan removes a machine without a row. A kept machine of another store is taken in instead: a user's
// data must not die of a lost database.
func (s *Service) removeOrphan(ctx context.Context, m hostapi.Machine, orphans firstSeen) error {
	id := string(m.ID)
	if !orphans.overdue(id, s.cfg.OrphanGrace) {
		return nil
	}
	ctx, release, ok := s.locks.tryAcquire(ctx, id)
	if !ok {
		return nil
	}
	defer release()
	if _, err := s.db.Read().Sandbox(ctx, id); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	delete(orphans, id)
	if m.Persistent && m.Labels["store"] != "" && m.Labels["store"] != s.db.ID() && m.Labels["workspace"] != "" {
		return s.adopt(ctx, m)
	}
	s.log.Warn("a machine that nobody owns is destroyed", "machine", id)
	if err := s.host.Destroy(ctx, m.ID, "nobody owns it"); err != nil {
		return hostError(err, "destroy", id)
	}
	return nil
}

// adopt makes a row for a kept machine that another store knew.
func (s *Service) adopt(ctx context.Context, m hostapi.Machine) error {
	now := store.Micros(time.Now())
	r := &store.Sandbox{
		ID:         string(m.ID),
		Workspace:  m.Labels["workspace"],
		State:      string(statusOf(m.State)),
		Owner:      s.instance,
		Template:   string(m.Template),
		Snapshot:   string(m.Snapshot),
		Parent:     string(m.Parent),
		Phases:     "[]",
		Injected:   m.Labels[injectedLabel],
		Persistent: true,
		OnEnd:      string(api.TimeoutDelete),
		Created:    store.Micros(m.Created),
		Changed:    now,
		Active:     now,
		Reason:     m.Reason,
	}
	if err := setNetwork(r, api.Network{AllowOut: m.Egress.Allow, DenyOut: m.Egress.Deny, DenyOthers: m.Egress.DenyOthers}); err != nil {
		return err
	}
	applyMachine(r, m)
	s.log.Warn("a kept machine of another store is taken in", "machine", m.ID, "workspace", r.Workspace)
	return s.db.Write(ctx, "take in", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutWorkspace(ctx, &store.Workspace{ID: r.Workspace, Name: r.Workspace, Created: now}); err != nil {
			return err
		}
		if err := tx.InsertSandbox(ctx, r); err != nil {
			return err
		}
		return s.appendEvents(ctx, tx, r, newEvent{api.EventMachineAdopted, map[string]any{"store": m.Labels["store"]}})
	})
}

// reconcileSnapshots compares the registry with what the host has.
func (s *Service) reconcileSnapshots(ctx context.Context, orphans firstSeen) error {
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
			all = errors.Join(all, s.reconcileSnapshot(ctx, row))
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

// reconcileSnapshot takes back one that was being made or deleted by a process that is gone, and drops one
// that no host has.
func (s *Service) reconcileSnapshot(ctx context.Context, row store.Snapshot) error {
	ctx, release, ok := s.locks.tryAcquire(ctx, row.ID)
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
	if s.db.Shared() && snap.Owner != s.instance && time.Since(store.Time(snap.Created)) < s.cfg.ForeignOwnerGrace {
		return nil
	}
	return s.removeSnapshot(ctx, &snap)
}
