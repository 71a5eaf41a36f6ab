package database

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// origin is what a branch that is being made is made of, or the server that a failover or a reset replaces, as the row
// has it.
type origin struct {
	Database string  `json:"database,omitempty"` // "": its own backups, of a failover
	Moment   *moment `json:"moment,omitempty"`   // of the past; nil: what the database has now

	Replaces  string `json:"replaces,omitempty"`  // id of the server
	Promotes  string `json:"promotes,omitempty"`  // id of the replica that replaces it
	Unapplied bool   `json:"unapplied,omitempty"` // the server lacks the credentials of the row

	Adopted bool       `json:"adopted,omitempty"` // from another node
	Upgrade *upgrading `json:"upgrade,omitempty"` // nil: to a server of the same version
}

// forkKey is the metadata of a fork that has the id of the branch that it is made for.
const forkKey = "database_branch"

// Clone begins to branch a database, and returns at once. The branch has what the database has when Run makes it, and
// credentials of its own.
func (s *Service) Clone(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.CloneDatabaseRequest,
) (api.Database, error) {
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	parent, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&parent)
	}
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	if req.Past() {
		if err := s.checkPast(ctx, &parent); err != nil {
			return api.Database{}, api.AsError(err)
		}
	}
	row, err := branchOf(&parent, req)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	row.Instance = s.instance
	err = s.db.Write(ctx, "database branch", func(ctx context.Context, tx *store.Tx) error {
		one := quota.Amount{Kind: quota.Databases, N: 1}
		if err := s.quotas.Admit(ctx, tx, api.Workspace(row.Workspace), one); err != nil {
			return err
		}
		now, err := tx.Database(ctx, parent.ID)
		if err != nil || now.State != store.DatabaseReady {
			return notFound(id) // it was deleted in the meantime
		}
		return tx.InsertDatabase(ctx, &row)
	})
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	s.poke()
	return s.show(ctx, &row)
}

// branchOf plans a branch.
func branchOf(parent *store.Database, req api.CloneDatabaseRequest) (store.Database, error) {
	if req.Size != "" && string(req.Size) != parent.Size {
		return store.Database{}, api.Errorf(api.Invalid, "size: a branch has the size of its database, %s: leave it "+
			"out", parent.Size).With("field", "size")
	}
	branched := origin{Database: parent.ID}
	if req.Past() {
		at, err := momentOf(req)
		if err != nil {
			return store.Database{}, err
		}
		branched.Moment = at
	}
	from, err := json.Marshal(branched)
	if err != nil {
		return store.Database{}, err
	}
	at := store.Micros(time.Now())
	row := *parent
	row.ID, row.State, row.Error = string(api.NewDatabaseID()), store.DatabaseCreating, ""
	row.Label = cmp.Or(req.Label, parent.Label)
	row.ClonedFrom, row.Origin, row.AlwaysOn, row.SchemaOnly = parent.ID, string(from), false, req.SchemaOnly
	row.Replicas = 0
	row.Expires, row.Used, row.Created, row.Changed = expiry(req.TTLSeconds), at, at, at
	return row, setCredentials(&row)
}

// makeBranch makes the machine of a branch: a fork of that of its database, whose copy of the volume becomes a volume
// of the branch.
func (s *Service) makeBranch(ctx context.Context, row *store.Database) error {
	from, err := originOf(row)
	if err != nil {
		return err
	}
	if from.Moment != nil {
		return s.makePast(ctx, row, from)
	}
	if row.SchemaOnly {
		g, m, facts, err := s.copySchema(ctx, row, from.Database)
		if err != nil {
			return err
		}
		setFacts(row, facts)
		return s.commitBranch(ctx, row, g, &m)
	}
	g, m, _, err := s.fork(ctx, row, from.Database)
	if err != nil {
		return err
	}
	return s.commitBranch(ctx, row, g, &m)
}

// commitBranch begins the backups of a branch if its commits wait for them, and writes that it is ready.
func (s *Service) commitBranch(
	ctx context.Context,
	row *store.Database,
	g guestapi.Guest,
	m *store.DatabaseMember,
) error {
	if row.Durability == string(api.DurabilitySync) {
		if err := s.beginBackups(ctx, row, g); err != nil {
			return err
		}
	}
	return s.commit(ctx, *row, row, m)
}

// fork makes a machine for a branch with what its database has now, and the credentials of the branch.
func (s *Service) fork(
	ctx context.Context,
	row *store.Database,
	of string,
) (g guestapi.Guest, m store.DatabaseMember, parent store.Database, err error) {
	if parent, err = s.db.Read().Database(ctx, of); err != nil {
		return g, m, parent, err
	}
	release, err := s.acquire(ctx, api.DatabaseID(parent.ID))
	if err != nil {
		return g, m, parent, err
	}
	defer release()
	g, m, err = s.forkOf(ctx, row, &parent)
	return g, m, parent, err
}

// forkOf is fork for a database that has no other user meanwhile. Its machine runs afterwards.
func (s *Service) forkOf(
	ctx context.Context,
	row, parent *store.Database,
) (g guestapi.Guest, m store.DatabaseMember, err error) {
	source, err := s.serverOf(ctx, parent)
	if err != nil {
		return g, m, err
	}
	// The branch recovers nothing, and what it has to write later is little.
	err = server.Use(ctx, source.guest, server.Maintained, func(conn *pgx.Conn) error {
		return server.Checkpoint(ctx, conn)
	})
	if err != nil {
		return g, m, serverError(err)
	}
	forked, err := s.boxes.Fork(ctx, as(parent), source.sandbox, api.ForkRequest{
		Count: 1, Persistent: new(true), Metadata: map[string]string{forkKey: row.ID},
	})
	if err != nil {
		return g, m, err
	}
	child := forked.Children[0].ID
	if err := s.boxes.SetOwner(ctx, as(parent), child, owner(row)); err != nil {
		return g, m, err
	}
	v, err := s.volumes.Keep(ctx, as(row), owner(row), child)
	if err != nil {
		return g, m, err
	}
	if g, err = s.boxes.Guest(ctx, as(row), child); err != nil {
		return g, m, err
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		if err := server.EndSessions(ctx, conn); err != nil { // of clients of the database
			return err
		}
		return server.SetVerifier(ctx, conn, RoleName, row.Verifier)
	})
	if err != nil {
		return g, m, serverError(err)
	}
	m = store.DatabaseMember{
		ID: string(child), Database: row.ID, Role: store.MemberPrimary, State: store.MemberReady,
		Sandbox: string(child), Volume: string(v.ID), Timeline: 1, Created: store.Micros(time.Now()),
	}
	return g, m, nil
}

// clearForks removes the forks for a branch that still belong to its database.
func (s *Service) clearForks(ctx context.Context, row *store.Database) error {
	if row.ClonedFrom == "" {
		return nil
	}
	p := as(&store.Database{ID: row.ClonedFrom, Workspace: row.Workspace})
	left, err := s.boxes.List(ctx, p, api.SandboxFilter{Metadata: map[string]string{forkKey: row.ID}})
	if err != nil {
		return err
	}
	for _, box := range left.Sandboxes {
		if err := s.boxes.Delete(ctx, p, box.ID); err != nil {
			return err
		}
	}
	return nil
}
