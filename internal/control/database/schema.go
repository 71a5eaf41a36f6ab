package database

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// copySchema makes a machine of the template for a branch without rows, whose server gets the roles and the schemas
// that its database has now, and the credentials of the branch. No row of the database ever comes to it.
func (s *Service) copySchema(
	ctx context.Context,
	row *store.Database,
	of string,
) (g guestapi.Guest, m store.DatabaseMember, facts server.Facts, err error) {
	parent, err := s.db.Read().Database(ctx, of)
	if err != nil {
		return g, m, facts, err
	}
	release, err := s.acquire(ctx, api.DatabaseID(parent.ID))
	if err != nil {
		return g, m, facts, err
	}
	defer release()
	source, err := s.serverOf(ctx, &parent)
	if err != nil {
		return g, m, facts, err
	}
	g, m, restart, err := s.makeMachine(ctx, row)
	if err != nil {
		return g, m, facts, err
	}
	if restart {
		if err := server.Restart(ctx, g, server.MemorySettings(api.DatabaseSize(row.Size).MemoryMB())); err != nil {
			return g, m, facts, serverError(err)
		}
	}
	if facts, err = server.ReadFacts(ctx, g); err != nil {
		return g, m, facts, serverError(err)
	}
	if err := s.copy(ctx, source.guest, g, server.Schema); err != nil {
		return g, m, facts, api.Wrap(api.Unavailable, err, "the schema could not be copied: "+err.Error())
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		return server.SetVerifier(ctx, conn, RoleName, row.Verifier)
	})
	if err != nil {
		return g, m, facts, serverError(err)
	}
	return g, m, facts, nil
}

// setFacts writes into a row what its server is.
func setFacts(row *store.Database, facts server.Facts) {
	row.Version, row.Variant, row.Collation = facts.Version, facts.Variant, facts.Collation
}
