package database

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/replica"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Failover begins to replace the server of a database, and returns at once.
//
// The new one has everything that the backups have: it is a read replica, or a new one. Id, URL and credentials stay.
// Run makes it.
//
// Without force it does so only for a server that is dead, and only if no confirmed commit is lost.
func (s *Service) Failover(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.FailoverRequest,
) (api.Database, error) {
	row, err := s.find(ctx, p, id)
	if err == nil && s.backups == nil {
		err = api.Errorf(api.Unsupported, "this server keeps no backups of databases to restore %s from: a connection "+
			"starts its machine again", id)
	}
	if err == nil {
		err = ready(&row) // a failover that is under way has the lock
	}
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	row, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	defer release()
	if err := ready(&row); err != nil {
		return api.Database{}, err
	}
	m, err := s.primary(ctx, row.ID)
	if err == nil {
		err = s.checkFailover(ctx, &row, &m, req.Force)
	}
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	return s.beginReplace(ctx, &row, origin{Replaces: m.ID})
}

// beginReplace writes that the server of a database that is ready is to be replaced. Run does it.
func (s *Service) beginReplace(ctx context.Context, row *store.Database, from origin) (api.Database, error) {
	from.Unapplied = row.Instance != ""
	begun, err := json.Marshal(from)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	row.State, row.Instance, row.Origin = store.DatabaseRestoring, s.instance, string(begun)
	row.Error, row.Changed = "", store.Micros(time.Now())
	err = s.db.Write(ctx, "database failover", func(ctx context.Context, tx *store.Tx) error {
		if from.another() {
			if err := checkBranching(ctx, tx, row); err != nil {
				return err
			}
		}
		if from.Upgrade != nil { // there is to be room for the branch
			one := quota.Amount{Kind: quota.Databases, N: 1}
			if err := s.quotas.Admit(ctx, tx, api.Workspace(row.Workspace), one); err != nil {
				return err
			}
		}
		return tx.UpdateDatabase(ctx, row, store.DatabaseReady, "state", "instance", "origin", "error", "changed")
	})
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	s.poke()
	return s.show(ctx, row)
}

// checkFailover refuses to replace a server that responds, or by one that lacks commits, unless that is forced; and
// what cannot be restored. The lock is held.
func (s *Service) checkFailover(ctx context.Context, row *store.Database, m *store.DatabaseMember, force bool) error {
	if !force {
		if err := s.checkDead(ctx, row, m); err != nil {
			return err
		}
	}
	status, err := s.backups.Status(ctx, row.ID)
	if err != nil && !errors.Is(err, backup.ErrNotRunning) {
		return err
	}
	if promotable, err := s.replicas.Promotable(ctx, row); err != nil {
		return err
	} else if status.Based.IsZero() && len(promotable) == 0 {
		return api.Errorf(api.PreconditionFailed, "database %s has no complete base backup to restore it from, and no "+
			"read replica", row.ID)
	}
	if force || row.Durability == string(api.DurabilitySync) {
		return nil
	}
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(m.Sandbox))
	if err == nil && box.Status == api.Hibernated && !status.Running {
		return nil // all of its log was archived before it was suspended
	}
	until := status.Relay.Covered
	if until.IsZero() {
		until = status.Based
	}
	return api.Errorf(api.PreconditionFailed, "database %s is asynchronous, and commits after %s may be lost: use "+
		"force to restore what the backups have, or connect to start its machine again", row.ID,
		until.UTC().Format(time.RFC3339)).With("covered_until", until.UTC().Format(time.RFC3339Nano))
}

// checkDead returns an error unless the machine, the volume or the server of a database does not work.
func (s *Service) checkDead(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(m.Sandbox))
	switch code := api.CodeOf(err); {
	case code == api.NotFound || code == api.Gone:
		return nil
	case err != nil:
		return err
	case box.Status == api.Failed:
		return nil
	}
	if m.Volume != "" {
		v, err := s.volumes.Get(ctx, as(row), m.Volume)
		if code := api.CodeOf(err); code == api.NotFound || code == api.Gone {
			return nil
		}
		if err != nil {
			return err
		}
		if v.Check != nil && v.Check.Result == "damaged" {
			return nil
		}
	}
	if box.Status != api.Running {
		return api.Errorf(api.WrongState, "database %s sleeps and a connection wakes it: use force to replace "+
			"its server", row.ID)
	}
	asking, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	err = s.ask(asking, row, func(conn *pgx.Conn) error { return conn.Ping(asking) })
	if err != nil {
		return context.Cause(ctx) // nil: the server does not respond
	}
	return api.Errorf(api.WrongState, "the server of database %s responds: use force to replace it", row.ID)
}

// failover replaces the server of a database that is being restored. It continues what was begun at any step. The lock
// is held.
func (s *Service) failover(ctx context.Context, row *store.Database) error {
	from, err := originOf(row)
	if err != nil {
		return err
	}
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	if m.ID == from.Replaces {
		if err := s.replace(ctx, row, from, &m); err != nil {
			return s.undoFailover(ctx, row, &m, from, err)
		}
	}
	// From here on the log goes on in the new server: there is no way back.
	if from.another() { // it is another log than that of the backups
		if err := s.removeBackups(ctx, row); err != nil {
			return err
		}
	}
	if _, err := s.runLocked(ctx, row); err != nil {
		return err
	}
	if s.needsBackups(row) {
		if err := s.beginBackups(ctx, row, nil); err != nil {
			return err
		}
	}
	row.State, row.Instance, row.Error = store.DatabaseReady, "", ""
	row.Changed = store.Micros(time.Now())
	row.Used = row.Changed
	err = s.db.Write(ctx, "database failover end", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseRestoring, "state", "instance", "error", "changed", "used")
	})
	if err != nil {
		return err
	}
	s.of(api.DatabaseID(row.ID)).touch()
	s.log.Info("the server of a database was replaced", "database", row.ID, "from", from.Replaces)
	return s.dropReplaced(ctx, row)
}

// replace makes a server the primary in place of old: a read replica or a new one with everything that the backups of a
// database have, or a new one with what the database has that it is a branch of. Other replicas are made again.
func (s *Service) replace(ctx context.Context, row *store.Database, from origin, old *store.DatabaseMember) error {
	if err := s.fence(ctx, row, old, from.Upgrade == nil); err != nil {
		return err
	}
	if err := s.clearForks(ctx, row); err != nil { // of an earlier attempt
		return err
	}
	all, err := s.db.Read().DatabaseMembers(ctx, row.ID)
	if err != nil {
		return err
	}
	if err := s.sweep(ctx, row, all...); err != nil {
		return err
	}
	var m store.DatabaseMember
	var keep *keptBranch
	switch {
	case from.Upgrade != nil:
		m, keep, err = s.upgradeServer(ctx, row, from.Upgrade, old)
	case from.Database != "":
		m, err = s.copyParent(ctx, row, from)
	default:
		m, err = s.promote(ctx, row, from)
		if errors.Is(err, replica.ErrNone) {
			m, err = s.restoreNew(ctx, row, old)
		}
		m.Timeline = old.Timeline + 1
	}
	if err != nil {
		return err
	}
	m.Role, m.State = store.MemberPrimary, store.MemberReady
	return s.db.Write(ctx, "database failover switch", func(ctx context.Context, tx *store.Tx) error {
		for _, one := range all {
			if err := tx.DeleteDatabaseMember(ctx, one.ID); err != nil {
				return err
			}
		}
		if err := tx.InsertDatabaseMember(ctx, &m); err != nil {
			return err
		}
		if keep != nil {
			if err := keep.insert(ctx, tx, s.quotas); err != nil {
				return err
			}
		}
		if from.Database != "" { // the roles are others
			if err := tx.SetDatabaseRoles(ctx, row.ID, nil); err != nil {
				return err
			}
		}
		return tx.UpdateDatabase(ctx, row, store.DatabaseRestoring, "version", "variant", "collation_version",
			"extensions", "template")
	})
}

// restoreNew makes a new server with everything that the backups of a database have.
func (s *Service) restoreNew(
	ctx context.Context,
	row *store.Database,
	old *store.DatabaseMember,
) (m store.DatabaseMember, err error) {
	size, err := s.storageOf(ctx, row, old)
	if err != nil {
		return m, err
	}
	g, m, _, err := s.makeMachine(ctx, row)
	if err != nil {
		return m, err
	}
	if err := s.growTo(ctx, row, &m, size); err != nil {
		return m, err
	}
	return m, s.restoreInto(ctx, row, g)
}

// fence ends every way in which the server of a database can take writes. Its machine sleeps afterwards, and only what
// holds the lock of a database that is ready wakes it; with force a machine that cannot sleep is removed.
func (s *Service) fence(ctx context.Context, row *store.Database, m *store.DatabaseMember, force bool) error {
	p, id := as(row), api.DatabaseID(row.ID)
	gone, admit, ok := s.of(id).hold(true)
	if !ok {
		return api.Errorf(api.Unavailable, "database %s is being suspended", id)
	}
	defer admit()
	if err := s.replicas.StopSeeds(ctx, row); err != nil {
		return err
	}
	s.endSessions(ctx, id)
	select {
	case <-gone:
	case <-time.After(s.cfg.EndTimeout): // they end with the machine
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	box, err := s.boxes.Get(ctx, p, api.SandboxID(m.Sandbox))
	if code := api.CodeOf(err); code == api.NotFound || code == api.Gone {
		return s.endBackups(ctx, row)
	}
	if err != nil {
		return err
	}
	if box.Status == api.Running {
		if err := s.quiesce(ctx, row, box.ID); err != nil {
			s.log.Warn("the server of a database that is replaced does not respond", "database", row.ID, "err", err)
		}
	}
	if err := s.endBackups(ctx, row); err != nil {
		return err
	}
	if box.Status == api.Failed || box.Status == api.Hibernated {
		return nil
	}
	_, err = s.boxes.Hibernate(ctx, p, box.ID)
	if err == nil || ctx.Err() != nil || !force {
		return err
	}
	s.log.Warn("the machine of a database that is replaced does not sleep and is removed", "database", row.ID,
		"err", err)
	return s.boxes.Delete(ctx, p, box.ID)
}

// quiesce ends the sessions of a server that responds, and brings what it has confirmed to the archive.
func (s *Service) quiesce(ctx context.Context, row *store.Database, box api.SandboxID) error {
	g, err := s.boxes.Guest(ctx, as(row), box)
	if err != nil {
		return err
	}
	roles, err := s.endServerSessions(ctx, g)
	if err != nil {
		return err
	}
	if err := s.saveRoles(ctx, row, roles); err != nil {
		return err
	}
	if s.backups == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.FlushTimeout, errors.New("the log was not archived in time"))
	defer cancel()
	return s.backups.Flush(ctx, row.ID)
}

// endServerSessions ends the sessions of a server and reads its roles.
func (s *Service) endServerSessions(ctx context.Context, g guestapi.Guest) (roles []server.Role, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("the server did not respond in time"))
	defer cancel()
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) (err error) {
		if err := server.EndSessions(ctx, conn); err != nil {
			return err
		}
		roles, err = server.Roles(ctx, conn)
		return err
	})
	return roles, err
}

// storageOf returns the size of the storage of a server in MiB; 0 if it is not known. The storage of a branch is as
// large as that of its database was.
func (s *Service) storageOf(ctx context.Context, row *store.Database, m *store.DatabaseMember) (int64, error) {
	from, at := row.ClonedFrom, *m
	for at.Volume == "" {
		parent, err := s.db.Read().Database(ctx, from)
		if errors.Is(err, store.ErrNotFound) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		at, err = s.primary(ctx, parent.ID)
		if api.CodeOf(err) == api.Unavailable {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		from = parent.ClonedFrom
	}
	v, err := s.db.Read().Volume(ctx, at.Volume)
	if errors.Is(err, store.ErrNotFound) {
		return 0, nil
	}
	return int64(v.SizeMiB), err
}

// sweep removes the machines and volumes of a database that do not belong to the servers that are kept. Forks that
// branches are being made of stay.
func (s *Service) sweep(ctx context.Context, row *store.Database, keep ...store.DatabaseMember) error {
	kept := map[string]bool{}
	for _, m := range keep {
		kept[m.Sandbox], kept[m.Volume] = true, true
	}
	p := as(row)
	boxes, err := s.boxes.List(ctx, p, api.SandboxFilter{})
	if err != nil {
		return err
	}
	for _, box := range boxes.Sandboxes {
		if branch := box.Metadata[forkKey]; kept[string(box.ID)] || branch != "" && branch != row.ID {
			continue
		}
		if err := s.boxes.Delete(ctx, p, box.ID); err != nil {
			return err
		}
	}
	volumes, err := s.db.Read().Volumes(ctx, store.VolumeQuery{Workspace: row.Workspace, OwnedBy: owner(row).String()})
	if err != nil {
		return err
	}
	for _, v := range volumes {
		if kept[v.ID] || kept[hostapi.ParseOwner(v.Holder).ID] {
			continue
		}
		if v.State != store.VolumeReady {
			return api.Errorf(api.Unavailable, "volume %s of database %s is being made or removed", v.ID, row.ID)
		}
		if err := s.volumes.Delete(ctx, p, v.ID, true); err != nil {
			return err
		}
	}
	return nil
}

// undoFailover removes what a failover has made, and leaves the server that it could not replace in its place.
func (s *Service) undoFailover(
	ctx context.Context,
	row *store.Database,
	old *store.DatabaseMember,
	from origin,
	cause error,
) error {
	if ctx.Err() != nil { // this process ends, or the database is being deleted
		return context.Cause(ctx)
	}
	now, err := s.primary(ctx, row.ID)
	if err != nil || now.ID != old.ID {
		return errors.Join(cause, err) // it was replaced, although the commit failed: it is continued later
	}
	if *row, err = s.db.Read().Database(ctx, row.ID); err != nil { // what it was to become is not so
		return errors.Join(cause, err)
	}
	begun, err := originOf(row)
	if err != nil {
		return errors.Join(cause, err)
	}
	if begun.Promotes != "" { // it may take writes
		if err := s.replicas.Remove(ctx, row, begun.Promotes); err != nil {
			return errors.Join(cause, err)
		}
	}
	all, err := s.db.Read().DatabaseMembers(ctx, row.ID)
	if err == nil {
		err = errors.Join(s.clearForks(ctx, row), s.clearKept(ctx, row), s.sweep(ctx, row, all...))
	}
	if err != nil {
		return errors.Join(cause, err) // it is tried again from the beginning
	}
	s.log.Warn("the server of a database could not be replaced", "database", row.ID, "err", cause)
	row.State, row.Instance, row.Origin = store.DatabaseReady, "", ""
	if from.Unapplied {
		row.Instance = s.instance
	}
	row.Error, row.Changed = api.Reason(from.verb()+" failed: ", cause), store.Micros(time.Now())
	return s.db.Write(ctx, "database failover undone", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseRestoring, "state", "instance", "origin", "error", "changed")
	})
}

// dropReplaced removes the server that a failover has replaced. The lock is held.
func (s *Service) dropReplaced(ctx context.Context, row *store.Database) error {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	if err := s.sweep(ctx, row, m); err != nil {
		return err
	}
	row.Origin = ""
	return s.db.Write(ctx, "database failover done", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseReady, "origin")
	})
}

// Estimate of a failover: a machine and its server, and the bytes of the data directory per second.
const (
	failoverBase  = 30
	failoverBytes = 10 << 20
	promotionETA  = 10 // of a read replica
)

// viewFailover adds whether the server of a database can be replaced, and how long that takes.
func (s *Service) viewFailover(ctx context.Context, row *store.Database, out *api.Database) error {
	if s.backups == nil {
		out.FailoverReason = "this server keeps no backups of databases"
		return nil
	}
	l := s.of(api.DatabaseID(row.ID))
	l.mu.Lock()
	stored := l.stored
	l.mu.Unlock()
	eta := failoverBase + int(stored/failoverBytes)
	switch row.State {
	case store.DatabaseRestoring:
		out.FailoverReason, out.FailoverETASeconds = "its server is being replaced", eta
		return nil
	case store.DatabaseReady:
	default:
		out.FailoverReason = "the database has no server"
		return nil
	}
	status, err := s.backups.Status(ctx, row.ID)
	if err != nil && !errors.Is(err, backup.ErrNotRunning) {
		return err
	}
	replicas, err := s.replicas.Promotable(ctx, row)
	switch {
	case err != nil:
		return err
	case len(replicas) > 0:
		eta = promotionETA
	case status.Based.IsZero():
		out.FailoverReason = "the database has no complete base backup yet"
		return nil
	}
	out.FailoverAvailable, out.FailoverETASeconds = true, eta
	return nil
}
