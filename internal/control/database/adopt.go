package database

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Adopt begins to take a database over from a node that is lost, and returns at once. Id, workspace, URL, credentials
// and settings stay; it has what the archive has. The node that had it is refused from then on.
func (s *Service) Adopt(ctx context.Context, p auth.Principal, req api.AdoptDatabaseRequest) (api.Database, error) {
	if !p.Operator {
		return api.Database{}, api.Errorf(api.Forbidden, "databases are adopted by those who operate the node: use "+
			"an operator's key")
	}
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	d, err := s.adoptions.Plan(ctx, string(req.ID))
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	row := d.Database
	if _, err := s.template(ctx, as(&row), row.Template); err != nil {
		return api.Database{}, api.AsError(err)
	}
	text, err := json.Marshal(origin{Adopted: true})
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	row.State, row.Origin, row.Changed = store.DatabaseCreating, string(text), store.Micros(time.Now())
	row.Used = row.Changed
	if err := s.insert(ctx, &row); err != nil {
		return api.Database{}, api.AsError(err)
	}
	s.poke()
	return s.show(ctx, &row)
}

// makeAdopted makes the server of a database that is adopted. Its archive is read after the node that had it was fenced
// off. The lock is held.
func (s *Service) makeAdopted(ctx context.Context, row *store.Database) error {
	d, err := s.adoptions.Take(ctx, row.ID)
	if err != nil {
		return err
	}
	now := d.Database
	now.State, now.Instance, now.Origin, now.Used = row.State, row.Instance, row.Origin, row.Used
	g, m, _, err := s.makeMachine(ctx, &now)
	if err != nil {
		return err
	}
	if err := s.growTo(ctx, &now, &m, d.StorageMiB); err != nil {
		return err
	}
	m.Timeline = d.Timeline + 1
	if err := s.restoreInto(ctx, &now, g); err != nil {
		return err
	}
	err = s.db.Write(ctx, "database adopted", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.SetDatabaseRoles(ctx, now.ID, d.Roles); err != nil {
			return err
		}
		return tx.UpdateDatabase(ctx, &now, store.DatabaseCreating, "label", "size", "vcpus", "password", "verifier",
			"broker_token", "always_on", "idle_seconds", "durability", "storage_max_mib", "networks", "replicas",
			"expires")
	})
	if err != nil {
		return err
	}
	if now.Durability == string(api.DurabilitySync) {
		if err := s.beginBackups(ctx, &now, g); err != nil {
			return err
		}
	}
	return s.commit(ctx, now, row, &m)
}

// restoreInto gives a new server everything that the backups of a database have, and its credentials.
func (s *Service) restoreInto(ctx context.Context, row *store.Database, g guestapi.Guest) error {
	_, err := s.backups.Restore(ctx, backup.RestoreRequest{
		From: row.ID, Target: backup.Target{Variant: row.Variant, Collation: row.Collation},
		Into: backup.GuestServer{Guest: g},
	})
	if err != nil {
		return restoreError(err)
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		return server.SetVerifier(ctx, conn, RoleName, row.Verifier)
	})
	if err != nil {
		return serverError(err)
	}
	facts, err := server.ReadFacts(ctx, g)
	if err != nil {
		return serverError(err)
	}
	setFacts(row, facts)
	return nil
}

// describe keeps the description of a database for a node that adopts it. The lock is held.
func (s *Service) describe(ctx context.Context, row *store.Database) error {
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	mib, err := s.storageOf(ctx, row, &m)
	if err != nil {
		return err
	}
	return s.leave(ctx, row, s.adoptions.Describe(ctx, row, &m, mib))
}

// leave stops the server of a database if the cause of a failure is that another node has adopted it. Its machine and
// volume stay, asleep, until it is deleted. The lock is held.
func (s *Service) leave(ctx context.Context, row *store.Database, cause error) error {
	if !errors.Is(cause, backup.ErrFenced) {
		return cause
	}
	m, err := s.primary(ctx, row.ID)
	if err != nil {
		return err
	}
	if err := s.fence(ctx, row, &m, true); err != nil {
		return err
	}
	if err := s.replicas.Sleep(ctx, row); err != nil {
		return err
	}
	s.log.Error("another node has adopted a database, whose server stops", "database", row.ID)
	row.State, row.Instance, row.Error = store.DatabaseFailed, "", backup.Adopted(row.ID).Message
	row.Changed = store.Micros(time.Now())
	return s.db.Write(ctx, "database left", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseReady, "state", "instance", "error", "changed")
	})
}
