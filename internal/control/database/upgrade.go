package database

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// upgrading is what an upgrade is to, as the row has it.
type upgrading struct {
	Template string `json:"template"`
	Kept     string `json:"kept"`    // id of the branch that keeps what the database had
	Seconds  int64  `json:"seconds"` // for so long
}

// keptBranch is the branch that keeps what a database had before an upgrade. Its row is written with the switch.
type keptBranch struct {
	row    store.Database
	member store.DatabaseMember
}

// Upgrade begins to give a database a server of a newer major version, and returns at once.
//
// Id, URL and credentials stay. What the database had stays as a branch. Run does it, by dump and restore.
func (s *Service) Upgrade(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.UpgradeDatabaseRequest,
) (api.Database, error) {
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	row, err := s.find(ctx, p, id)
	if err == nil {
		err = ready(&row)
	}
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	t, err := s.template(ctx, p, cmp.Or(req.Template, server.UpgradeTemplate))
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	if err := s.checkUpgrade(ctx, p, &row, t); err != nil {
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
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	return s.beginReplace(ctx, &row, origin{Replaces: m.ID, Upgrade: &upgrading{
		Template: t.Name, Kept: string(api.NewDatabaseID()),
		Seconds: cmp.Or(req.KeepSeconds, server.KeepSeconds),
	}})
}

// checkUpgrade refuses an upgrade that could not succeed, with every reason. It wakes the database.
func (s *Service) checkUpgrade(ctx context.Context, p auth.Principal, row *store.Database, t api.Template) error {
	if s.cfg.FixedMemory && api.DatabaseSize(row.Size).MemoryMB() > t.MemoryMB {
		return errSize(api.DatabaseSize(row.Size), t)
	}
	to, err := s.factsOf(ctx, p, t)
	if err != nil {
		return err
	}
	release, err := s.acquire(ctx, api.DatabaseID(row.ID))
	if err != nil {
		return err
	}
	defer release()
	source, err := s.serverOf(ctx, row)
	if err != nil {
		return err
	}
	reasons, err := server.CheckUpgrade(ctx, source.guest, server.Facts{Version: row.Version}, to)
	if err != nil {
		return serverError(err)
	}
	if len(reasons) > 0 {
		return api.Errorf(api.PreconditionFailed, "database %s cannot be upgraded to template %s: %s", row.ID, t.Name,
			strings.Join(reasons, "; ")).With("reasons", reasons)
	}
	return nil
}

// keptOf plans the branch that keeps what a database had.
func keptOf(row *store.Database, up *upgrading) (kept store.Database, err error) {
	label := fmt.Sprintf("%s, PostgreSQL %s", cmp.Or(row.Label, row.ID), row.Version)
	if utf8.RuneCountInString(label) > api.MaxDatabaseLabel {
		label = row.Label
	}
	kept, err = branchOf(row, api.CloneDatabaseRequest{Label: label, TTLSeconds: up.Seconds})
	kept.ID, kept.State, kept.Instance, kept.Origin = up.Kept, store.DatabaseReady, "", ""
	return kept, err
}

// upgradeServer makes a new server with everything that a fenced one has, and the branch that keeps that.
//
// The branch is a fork, and what it has is dumped: the fenced server runs only until it is forked.
func (s *Service) upgradeServer(
	ctx context.Context,
	row *store.Database,
	up *upgrading,
	old *store.DatabaseMember,
) (m store.DatabaseMember, keep *keptBranch, err error) {
	keep = &keptBranch{}
	if keep.row, err = keptOf(row, up); err != nil {
		return m, nil, err
	}
	if err := s.clear(ctx, &keep.row); err != nil { // of an earlier attempt
		return m, nil, err
	}
	var from server.Guest
	if from, keep.member, err = s.forkOf(ctx, &keep.row, row); err != nil {
		return m, nil, err
	}
	if _, err := s.boxes.Hibernate(ctx, as(row), api.SandboxID(old.Sandbox)); err != nil {
		return m, nil, err
	}
	size, err := s.storageOf(ctx, row, old)
	if err != nil {
		return m, nil, err
	}
	row.Template = up.Template
	g, m, restart, err := s.makeMachine(ctx, row)
	if err != nil {
		return m, nil, err
	}
	if err := s.growTo(ctx, row, &m, size); err != nil {
		return m, nil, err
	}
	if restart {
		if err := server.Restart(ctx, g, server.MemorySettings(api.DatabaseSize(row.Size).MemoryMB())); err != nil {
			return m, nil, serverError(err)
		}
	}
	facts, err := server.ReadFacts(ctx, g)
	if err != nil {
		return m, nil, serverError(err)
	}
	if err := s.copy(ctx, from, g, server.All); err != nil {
		return m, nil, api.Wrap(api.Unavailable, err, "the data could not be copied: "+err.Error())
	}
	err = server.Use(ctx, g, server.Maintained, func(conn *pgx.Conn) error {
		if err := server.SetVerifier(ctx, conn, RoleName, row.Verifier); err != nil {
			return err
		}
		return server.Checkpoint(ctx, conn) // what was copied is on the volume
	})
	if err != nil {
		return m, nil, serverError(err)
	}
	setFacts(row, facts)
	row.Extensions, err = extensionsOf(facts)
	return m, keep, err
}

// insert writes the branch that keeps what a database had.
func (k *keptBranch) insert(ctx context.Context, tx *store.Tx, quotas *quota.Quotas) error {
	one := quota.Amount{Kind: quota.Databases, N: 1}
	if err := quotas.Admit(ctx, tx, api.Workspace(k.row.Workspace), one); err != nil {
		return err
	}
	k.row.Used = store.Micros(time.Now())
	if err := tx.InsertDatabase(ctx, &k.row); err != nil {
		return err
	}
	return tx.InsertDatabaseMember(ctx, &k.member)
}

// clearKept removes what an upgrade that has not switched has made of the branch that keeps what the database had.
func (s *Service) clearKept(ctx context.Context, row *store.Database) error {
	if row.Origin == "" {
		return nil
	}
	from, err := originOf(row)
	if err != nil || from.Upgrade == nil {
		return err
	}
	_, err = s.db.Read().Database(ctx, from.Upgrade.Kept)
	if !errors.Is(err, store.ErrNotFound) {
		return err // nil: it is a database of its own
	}
	kept, err := keptOf(row, from.Upgrade)
	if err != nil {
		return err
	}
	return s.clear(ctx, &kept)
}

// viewUpgrade adds which branch keeps what a database has that is being upgraded.
func viewUpgrade(row *store.Database, out *api.Database) error {
	if row.Origin == "" {
		return nil
	}
	from, err := originOf(row)
	if err == nil && from.Upgrade != nil {
		out.PreviousID = api.DatabaseID(from.Upgrade.Kept)
	}
	return err
}
