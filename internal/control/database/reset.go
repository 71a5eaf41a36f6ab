package database

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Reset begins to give a branch what its database has, and returns at once.
//
// Id, URL and credentials of the branch stay, and what it has is lost, with its backups. Run does it, as a failover.
func (s *Service) Reset(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.ResetDatabaseRequest,
) (api.Database, error) {
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&row) // one whose server is being replaced has the lock
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
	if row.ClonedFrom == "" {
		return api.Database{}, api.Errorf(api.WrongState, "database %s is no branch: only a branch can be reset", id)
	}
	parent, err := s.find(ctx, p, api.DatabaseID(row.ClonedFrom))
	if api.CodeOf(err) == api.NotFound {
		err = api.Errorf(api.WrongState, "database %s, of which %s is a branch, was deleted: there is nothing to "+
			"reset it to", row.ClonedFrom, id)
	}
	if err == nil {
		err = ready(&parent)
	}
	from := origin{Database: parent.ID}
	if err == nil && req.TargetTime != nil && row.SchemaOnly {
		err = api.Errorf(api.Invalid, "target_time: %s is a branch without rows, which has the schema that its "+
			"database has now: leave it out", id).With("field", "target_time")
	}
	if err == nil && req.TargetTime != nil {
		from.Moment = &moment{Time: req.TargetTime}
		err = s.checkPast(ctx, &parent)
	}
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	from.Replaces = m.ID
	return s.beginReplace(ctx, &row, from)
}

// copyParent makes a new server for a branch with what its database has.
func (s *Service) copyParent(
	ctx context.Context,
	row *store.Database,
	from origin,
) (m store.DatabaseMember, err error) {
	parent, err := s.db.Read().Database(ctx, from.Database)
	if err != nil {
		return m, err
	}
	row.Template = parent.Template
	if row.SchemaOnly {
		_, m, facts, err := s.copySchema(ctx, row, from.Database)
		if err == nil {
			setFacts(row, facts)
			row.Extensions = parent.Extensions
		}
		return m, err
	}
	if from.Moment != nil {
		_, m, parent, err = s.past(ctx, row, from)
	} else {
		_, m, parent, err = s.fork(ctx, row, from.Database)
	}
	row.Version, row.Variant, row.Collation = parent.Version, parent.Variant, parent.Collation
	row.Extensions = parent.Extensions
	return m, err
}

// another reports whether the new server goes on with another log than that of the one that it replaces.
func (from origin) another() bool { return from.Database != "" || from.Upgrade != nil }

// verb names what replaces a server.
func (from origin) verb() string {
	switch {
	case from.Upgrade != nil:
		return "the upgrade"
	case from.Database != "":
		return "the reset"
	}
	return "the failover"
}
