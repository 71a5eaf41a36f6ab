package database

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/store"
)

// withBackups finds a database of the caller's workspace, on a server that keeps backups.
func (s *Service) withBackups(ctx context.Context, p auth.Principal, id api.DatabaseID) (store.Database, error) {
	row, err := s.find(ctx, p, id)
	if err == nil && s.backups == nil {
		err = api.Errorf(api.Unsupported, "this server keeps no backups of databases")
	}
	return row, err
}

// Backups returns the state of the backups of a database. It wakes nothing.
func (s *Service) Backups(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseBackups, error) {
	out := api.DatabaseBackups{
		Bases: []api.DatabaseBase{}, Windows: []api.DatabaseWindow{}, Rehearsals: []api.DatabaseRehearsal{},
	}
	if _, err := s.withBackups(ctx, p, id); err != nil {
		return out, err
	}
	status, err := s.backups.Status(ctx, string(id))
	if errors.Is(err, backup.ErrNotRunning) {
		return out, nil // they have not begun
	}
	if err != nil {
		return out, err
	}
	why := backup.Reasons(p.Operator)
	backup.FillStatus(&out, status, why)
	content, err := s.backups.Contents(ctx, string(id))
	if ctx.Err() != nil {
		return out, context.Cause(ctx)
	}
	if err != nil { // the state of the relay is worth most when the object store fails
		out.ArchiveError = why(err.Error())
	}
	backup.FillContents(&out, content)
	rows, err := s.db.Read().DatabaseRehearsals(ctx, string(id), api.MaxDatabaseRehearsals)
	for _, r := range rows {
		out.Rehearsals = append(out.Rehearsals, backup.ViewRehearsal(r, why))
	}
	return out, err
}

// BackUp makes a base backup of a database due at once. It is taken when the database runs.
func (s *Service) BackUp(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseAccepted, error) {
	row, err := s.withBackups(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return api.DatabaseAccepted{}, err
	}
	if err := s.backups.Order(ctx, row.ID); err != nil {
		if errors.Is(err, backup.ErrNotRunning) {
			err = notBegun(id)
		}
		return api.DatabaseAccepted{}, err
	}
	return api.DatabaseAccepted{
		ID: id, Status: "ordered", Detail: "the base backup is taken when the database runs: see its backups",
	}, nil
}

func notBegun(id api.DatabaseID) error {
	return api.Errorf(api.Unavailable, "the backups of database %s have not begun: try again in a moment", id)
}

// Rehearse begins a rehearsal of the restore of a database. The database need not run.
func (s *Service) Rehearse(ctx context.Context, p auth.Principal, id api.DatabaseID) (api.DatabaseRehearsal, error) {
	row, err := s.withBackups(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return api.DatabaseRehearsal{}, err
	}
	status, err := s.backups.Status(ctx, row.ID)
	switch {
	case errors.Is(err, backup.ErrNotRunning):
		return api.DatabaseRehearsal{}, notBegun(id)
	case err != nil:
		return api.DatabaseRehearsal{}, err
	case status.Based.IsZero():
		return api.DatabaseRehearsal{}, api.Errorf(api.WrongState, "database %s has no base backup yet: "+
			"try again when its backups list one", id)
	}
	begun, err := s.backups.OrderRehearsal(ctx, row.ID)
	switch {
	case errors.Is(err, backup.ErrRehearsing):
		err = api.Wrap(api.Conflict, err, err.Error()+": its backups show the result when it has ended")
	case errors.Is(err, backup.ErrBusy):
		err = api.Wrap(api.Unavailable, err, err.Error()+": try again later")
	}
	return backup.ViewRehearsal(begun, backup.Reasons(p.Operator)), err
}
