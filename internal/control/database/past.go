package database

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// scratchSeconds is the longest life of a machine for a rehearsal.
const scratchSeconds = int64(3 * 3600)

// moment is what a branch of the past has, as the row of the branch has it.
type moment struct {
	Time *time.Time      `json:"time,omitempty"`
	LSN  backup.Position `json:"lsn,omitempty"`
	XID  uint32          `json:"xid,omitempty"`
	Name string          `json:"name,omitempty"`
}

// momentOf returns the moment that a request is for.
func momentOf(req api.CloneDatabaseRequest) (*moment, error) {
	at := &moment{Time: req.TargetTime, XID: req.TargetXID, Name: req.TargetName}
	if req.TargetLSN == "" {
		return at, nil
	}
	var err error
	if at.LSN, err = backup.ParsePosition(req.TargetLSN); err != nil || at.LSN == 0 {
		return nil, api.Errorf(api.Invalid, "target_lsn: %.40q is not a position of the log: write it like 0/16B3748",
			req.TargetLSN).With("field", "target_lsn")
	}
	return at, nil
}

// target returns the target of a restore.
func (m *moment) target() backup.Target {
	t := backup.Target{LSN: m.LSN, XID: m.XID, Name: m.Name}
	if m.Time != nil {
		t.Time = *m.Time
	}
	return t
}

// checkPast refuses a branch of the past of a database that has no base backup.
func (s *Service) checkPast(ctx context.Context, parent *store.Database) error {
	if s.backups == nil {
		return api.Errorf(api.Unsupported, "target_time: this server keeps no log of databases: leave the target out "+
			"to branch what the database has now").With("field", "target_time")
	}
	status, err := s.backups.Status(ctx, parent.ID)
	if err == nil && !status.Based.IsZero() {
		return nil
	}
	if err != nil && !errors.Is(err, backup.ErrNotRunning) {
		return err
	}
	return api.Errorf(api.WrongState, "database %s has no base backup yet: it is taken soon after the database was "+
		"made", parent.ID)
}

// makePast makes the machine of a branch of the past.
func (s *Service) makePast(ctx context.Context, row *store.Database, from origin) error {
	g, m, _, err := s.past(ctx, row, from)
	if err != nil {
		return err
	}
	return s.commitBranch(ctx, row, g, &m)
}

// past makes a machine for a branch, whose server gets the data directory that its database had at a moment, and the
// credentials of the branch.
func (s *Service) past(
	ctx context.Context,
	row *store.Database,
	from origin,
) (g guestapi.Guest, m store.DatabaseMember, parent store.Database, err error) {
	if parent, err = s.db.Read().Database(ctx, from.Database); err != nil {
		return g, m, parent, err
	}
	target := from.Moment.target()
	target.Variant, target.Collation = parent.Variant, parent.Collation
	if target.CoveredUntil, err = s.covered(ctx, &parent); err != nil {
		return g, m, parent, err
	}
	source, err := s.primary(ctx, parent.ID)
	if err != nil {
		return g, m, parent, err
	}
	size, err := s.storageOf(ctx, &parent, &source)
	if err != nil {
		return g, m, parent, err
	}
	if g, m, _, err = s.makeMachine(ctx, row); err != nil {
		return g, m, parent, err
	}
	if err := s.growTo(ctx, row, &m, size); err != nil {
		return g, m, parent, err
	}
	_, err = s.backups.Restore(ctx, backup.RestoreRequest{
		From: parent.ID, Target: target, Into: backup.GuestServer{Guest: g},
	})
	if err != nil {
		return g, m, parent, restoreError(err)
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		return server.SetVerifier(ctx, conn, RoleName, row.Verifier)
	})
	if err != nil {
		return g, m, parent, serverError(err)
	}
	return g, m, parent, nil
}

// covered returns a time up to which nothing is missing in the archive of a database: now, if it sleeps since all of
// its log was brought there. Otherwise the backups know better.
func (s *Service) covered(ctx context.Context, row *store.Database) (time.Time, error) {
	_, release, err := s.locks.Acquire(ctx, row.ID)
	if err != nil {
		return time.Time{}, err
	}
	defer release()
	now := time.Now()
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return time.Time{}, err
	}
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(m.Sandbox))
	if err != nil || box.Status != api.Hibernated {
		return time.Time{}, nil // it may be lost: what was received is restored
	}
	status, err := s.backups.Status(ctx, row.ID)
	if err != nil || status.Running {
		return time.Time{}, err
	}
	return now, nil
}

// restoreError says what a target lacks.
func restoreError(err error) error {
	if backup.Unrestorable(err) {
		return api.Wrap(api.WrongState, err, err.Error())
	}
	return api.Wrap(api.Unavailable, err, "the database could not be restored: "+err.Error())
}

// originOf parses what a branch is made of.
func originOf(row *store.Database) (from origin, err error) {
	return from, json.Unmarshal([]byte(row.Origin), &from)
}

// Scratch makes a machine with the server of a database's template, for a rehearsal of a restore.
//
// Users cannot reach it. If this program ends before release is called, the machine ends by itself.
func (s *Service) Scratch(
	ctx context.Context,
	id string,
	bytes int64,
) (_ backup.Server, release func(context.Context) error, err error) {
	row, err := s.db.Read().Database(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	probe := store.Database{ID: string(api.NewDatabaseID()), Workspace: row.Workspace}
	p := as(&probe)
	t, err := s.template(ctx, p, row.Template)
	if err != nil {
		return nil, nil, err
	}
	if room := int64(diskOf(t).SizeMB) << 20; bytes > room {
		return nil, nil, api.Errorf(api.Unsupported, "the database takes %d MiB, more than the %d MiB of the data "+
			"disk of template %s", bytes>>20, room>>20, t.Name)
	}
	box, err := s.boxes.Create(ctx, p, api.CreateRequest{Template: t.Name, TTLSeconds: new(scratchSeconds)})
	if err != nil {
		return nil, nil, err
	}
	release = func(ctx context.Context) error { return s.boxes.Delete(ctx, p, box.ID) }
	g, err := s.boxes.Guest(ctx, p, box.ID)
	if err != nil {
		return nil, nil, errors.Join(err, release(ctx))
	}
	return backup.GuestServer{Guest: g}, release, nil
}
