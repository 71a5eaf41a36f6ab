package database

import (
	"context"
	"crypto/rand"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// tokenPrefix begins broker tokens.
const tokenPrefix = "pds_pg_"

// setCredentials gives a row a new password, its verifier and a new broker token.
func setCredentials(row *store.Database) error {
	var err error
	if row.Password, row.Verifier, err = server.NewPassword(); err != nil {
		return err
	}
	row.BrokerToken = tokenPrefix + strings.ToLower(rand.Text())
	return nil
}

// ResetCredentials replaces the password and the broker token of a database. A database that sleeps is woken.
//
// Sessions that are open stay.
func (s *Service) ResetCredentials(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
) (api.Database, error) {
	row, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	defer release()
	if err := ready(&row); err != nil {
		return api.Database{}, err
	}
	if _, err := s.runLocked(ctx, &row); err != nil { // what cannot be changed keeps its credentials
		return api.Database{}, api.AsError(err)
	}
	if err := setCredentials(&row); err != nil {
		return api.Database{}, api.AsError(err)
	}
	row.Instance = s.instance
	err = s.db.Write(ctx, "database credentials", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, &row, store.DatabaseReady, "password", "verifier", "broker_token", "instance")
	})
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.applyCredentials(ctx, &row); err != nil { // Run does it later
		return api.Database{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// applyCredentials makes the server of a database have the verifier of its row. The lock is held.
func (s *Service) applyCredentials(ctx context.Context, row *store.Database) error {
	g, err := s.runLocked(ctx, row)
	if err != nil {
		return err
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		return server.SetVerifier(ctx, conn, RoleName, row.Verifier)
	})
	if err != nil {
		return api.Wrap(api.Unavailable, err, "the server of the database did not take its new password: try again")
	}
	row.Instance = ""
	return s.db.Write(ctx, "database credentials end", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseReady, "instance")
	})
}

// saveRoles writes the roles that a server has, with which clients log in while it sleeps.
func (s *Service) saveRoles(ctx context.Context, row *store.Database, roles []server.Role) error {
	var others []store.DatabaseRole
	for _, r := range roles {
		if r.Name != RoleName {
			others = append(others, store.DatabaseRole{Name: r.Name, Verifier: r.Verifier})
			continue
		}
		if r.Verifier != row.Verifier { // it was changed by SQL, and the password is not known
			row.Verifier, row.Password = r.Verifier, ""
		}
	}
	return s.db.Write(ctx, "database roles", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateDatabase(ctx, row, row.State, "verifier", "password"); err != nil {
			return err
		}
		if err := tx.TouchDatabase(ctx, row.ID, store.Micros(time.Now())); err != nil {
			return err
		}
		return tx.SetDatabaseRoles(ctx, row.ID, others)
	})
}
