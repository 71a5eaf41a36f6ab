package database

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/volume"
)

// Create begins to make a database, and returns at once. Run makes it.
func (s *Service) Create(
	ctx context.Context,
	p auth.Principal,
	req api.CreateDatabaseRequest,
) (api.Database, error) {
	if p.Workspace == "" {
		return api.Database{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	row, err := s.plan(ctx, p, req)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	if err := s.insert(ctx, &row); err != nil {
		return api.Database{}, api.AsError(err)
	}
	s.poke()
	return s.show(ctx, &row)
}

// plan decides what is made, without making anything.
func (s *Service) plan(ctx context.Context, p auth.Principal, req api.CreateDatabaseRequest) (store.Database, error) {
	t, err := s.template(ctx, p, cmp.Or(req.Template, s.cfg.Template))
	if err != nil {
		return store.Database{}, err
	}
	at := store.Micros(time.Now())
	row := store.Database{
		ID: string(api.NewDatabaseID()), Workspace: string(p.Workspace), Label: req.Label, Replicas: req.Replicas,
		State: store.DatabaseCreating, Size: string(req.WantedSize()), VCPUs: t.CPU, Template: t.Name,
		AlwaysOn: req.AlwaysOn, IdleSeconds: cmp.Or(req.IdleSeconds, int64(s.cfg.Idle/time.Second)),
		Durability: string(cmp.Or(req.Durability, api.DurabilityAsync)), Expires: expiry(req.TTLSeconds),
		StorageMaxMiB: int64(cmp.Or(req.StorageMaxMB, max(s.cfg.StorageMaxMiB, diskOf(t).SizeMB))),
		Used:          at, Created: at, Changed: at,
	}
	if row.Networks, err = encode(req.Networks); err != nil {
		return row, err
	}
	if row.Extensions, err = encode(req.Extensions); err != nil {
		return row, err
	}
	switch {
	case req.CPU != 0 && req.CPU != t.CPU:
		return row, api.Errorf(api.Invalid, "cpu: %d was asked for and template %s has %d: leave it out", req.CPU,
			t.Name, t.CPU).With("field", "cpu")
	case s.cfg.FixedMemory && req.WantedSize().MemoryMB() > t.MemoryMB:
		return row, errSize(req.WantedSize(), t)
	case row.StorageMaxMiB < int64(diskOf(t).SizeMB):
		return row, api.Errorf(api.Invalid, "storage_max_mb: %d is less than the %d MiB that a new database has",
			row.StorageMaxMiB, diskOf(t).SizeMB).With("field", "storage_max_mb")
	case req.Durability == api.DurabilitySync && s.backups == nil:
		return row, errNoSync()
	}
	if len(req.Extensions) > 0 {
		if err := s.checkExtensions(ctx, p, t, req.Extensions); err != nil {
			return row, err
		}
	}
	return row, setCredentials(&row)
}

func errNoSync() error {
	return api.Errorf(api.Unsupported, "durability: this server has no log outside of a database's machine: use async").
		With("field", "durability")
}

// encode writes a list of texts; "" for none.
func encode(list []string) (string, error) {
	if len(list) == 0 {
		return "", nil
	}
	data, err := json.Marshal(list)
	return string(data), err
}

// template finds a template with a cluster.
func (s *Service) template(ctx context.Context, p auth.Principal, name string) (api.Template, error) {
	t, err := s.templates.Resolve(ctx, p, name)
	if api.CodeOf(err) == api.NotFound {
		return t, api.Wrap(api.Invalid, err, "template: "+err.Error()).With("field", "template")
	}
	if err == nil && diskOf(t).SizeMB == 0 {
		err = api.Errorf(api.Invalid, "template: %s has no data disk with a PostgreSQL cluster: use %s", t.Name,
			s.cfg.Template).With("field", "template")
	}
	return t, err
}

// diskOf returns the data disk of a template that the cluster is on.
func diskOf(t api.Template) api.DataDisk {
	for _, d := range t.DataDisks {
		if d.Name == server.Disk {
			return d
		}
	}
	return api.DataDisk{}
}

// insert writes the row of a database that is about to be made.
func (s *Service) insert(ctx context.Context, row *store.Database) error {
	row.Instance = s.instance
	return s.db.Write(ctx, "database create", func(ctx context.Context, tx *store.Tx) error {
		one := quota.Amount{Kind: quota.Databases, N: 1}
		if err := s.quotas.Admit(ctx, tx, api.Workspace(row.Workspace), one); err != nil {
			return err
		}
		return tx.InsertDatabase(ctx, row)
	})
}

// checkExtensions refuses a database with extensions that the template's server does not have, by their names.
func (s *Service) checkExtensions(ctx context.Context, p auth.Principal, t api.Template, want []string) error {
	facts, err := s.factsOf(ctx, p, t)
	if err != nil {
		return err
	}
	for _, name := range want {
		if !facts.Has(name) {
			return noExtension(name, t.Name, facts)
		}
	}
	return nil
}

func noExtension(name, template string, facts server.Facts) error {
	return api.Errorf(api.Invalid, "extensions: %.64q is not among the extensions of template %s (PostgreSQL %s, "+
		"%s): leave it out, or use another template", name, template, facts.Version, facts.Variant).
		With("field", "extensions")
}

// factsOf reads what a template says of its server, in a sandbox that ends again.
func (s *Service) factsOf(ctx context.Context, p auth.Principal, t api.Template) (facts server.Facts, err error) {
	probe := store.Database{ID: string(api.NewDatabaseID()), Workspace: string(p.Workspace)}
	box, err := s.boxes.Create(ctx, as(&probe), api.CreateRequest{Template: t.Name, TTLSeconds: new(int64(60))})
	if err != nil {
		return facts, err
	}
	defer func() {
		ctx, cancel := detached(ctx)
		defer cancel()
		err = errors.Join(err, s.boxes.Delete(ctx, as(&probe), box.ID))
	}()
	g, err := s.boxes.Guest(ctx, as(&probe), box.ID)
	if err != nil {
		return facts, err
	}
	return server.ReadFacts(ctx, g)
}

// provision makes the server of a database, or marks the database failed and leaves nothing. The lock is held.
func (s *Service) provision(ctx context.Context, row *store.Database) error {
	err := s.clear(ctx, row)
	if err != nil {
		return err
	}
	for range 2 { // a template that is baked again between the two steps is the reason for the second attempt
		err = s.make(ctx, row)
		if err == nil {
			return nil
		}
		// A commit whose outcome is not known may have made it ready.
		now, unknown := s.db.Read().Database(ctx, row.ID)
		if unknown != nil || now.State != store.DatabaseCreating {
			*row = now
			return unknown
		}
		if ctx.Err() != nil { // this process ends, or the database is being deleted: it is made later, or not at all
			return context.Cause(ctx)
		}
		if left := s.clear(ctx, row); left != nil {
			return errors.Join(err, left) // it is tried again from the beginning
		}
		if api.CodeOf(err) != api.Invalid {
			break
		}
	}
	s.log.Warn("a database could not be made", "database", row.ID, "err", err)
	row.State, row.Instance, row.Error = store.DatabaseFailed, "", api.Reason("", err)
	row.Changed = store.Micros(time.Now())
	return s.db.Write(ctx, "database failed", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, row, store.DatabaseCreating, "state", "instance", "error", "changed")
	})
}

// make makes the machine of a database: a new one, a branch or one of another node. The lock is held.
func (s *Service) make(ctx context.Context, row *store.Database) error {
	if row.Origin == "" {
		return s.makePrimary(ctx, row)
	}
	from, err := originOf(row)
	if err == nil && from.Adopted {
		return s.makeAdopted(ctx, row)
	}
	return s.makeBranch(ctx, row)
}

// makePrimary makes the machine of a database and writes that the database is ready.
func (s *Service) makePrimary(ctx context.Context, row *store.Database) error {
	g, m, restart, err := s.makeMachine(ctx, row)
	if err != nil {
		return err
	}
	facts, err := s.setUp(ctx, g, row, restart)
	if err != nil {
		return err
	}
	if row.Durability == string(api.DurabilitySync) {
		with := *row
		with.Variant, with.Collation = facts.Variant, facts.Collation
		if err := s.beginBackups(ctx, &with, g); err != nil {
			return err
		}
	}
	return s.finish(ctx, row, &m, facts)
}

// makeMachine makes a machine for a database, with a volume and the server that its template has. Its memory may differ
// from what the server was started with.
func (s *Service) makeMachine(
	ctx context.Context,
	row *store.Database,
) (g guestapi.Guest, m store.DatabaseMember, restart bool, err error) {
	p := as(row)
	t, err := s.template(ctx, p, row.Template)
	if err != nil {
		return nil, m, false, err
	}
	v, err := s.volumes.CreateFor(ctx, p, owner(row), api.CreateVolumeRequest{},
		volume.Disk{Template: hostapi.TemplateName(t.Host), Name: server.Disk, SizeMiB: diskOf(t).SizeMB})
	if err != nil {
		return nil, m, false, err
	}
	req := api.CreateRequest{
		Template: t.Name, Persistent: true, Volumes: []api.VolumeMount{{Name: string(v.ID), Disk: server.Disk}},
	}
	if memory := api.DatabaseSize(row.Size).MemoryMB(); memory > t.MemoryMB {
		req.MemoryMB = memory
	}
	box, err := s.boxes.Create(ctx, p, req)
	if err != nil {
		return nil, m, false, sizeError(err, row, t)
	}
	if g, err = s.boxes.Guest(ctx, p, box.ID); err != nil {
		return nil, m, false, err
	}
	m = store.DatabaseMember{
		ID: string(box.ID), Database: row.ID, Role: store.MemberPrimary, State: store.MemberReady,
		Sandbox: string(box.ID), Volume: string(v.ID), Timeline: 1, Created: store.Micros(time.Now()),
	}
	return g, m, req.MemoryMB > 0, nil
}

// sizeError says that a host cannot give a machine the memory of a size.
func sizeError(err error, row *store.Database, t api.Template) error {
	memory := api.DatabaseSize(row.Size).MemoryMB()
	if api.CodeOf(err) != api.Invalid || memory <= t.MemoryMB {
		return err
	}
	refused := errSize(api.DatabaseSize(row.Size), t)
	return api.Wrap(api.Unsupported, err, refused.Message).With("field", "size")
}

func errSize(size api.DatabaseSize, t api.Template) *api.Error {
	return api.Errorf(api.Unsupported, "size: the monitor of this host cannot add memory to the %d MiB of template "+
		"%s: use size 1g, or a template with the %d MiB of %s", t.MemoryMB, t.Name, size.MemoryMB(), size).
		With("field", "size")
}

// setUp makes role and database in a new server, and reads what the server is.
func (s *Service) setUp(
	ctx context.Context,
	g guestapi.Guest,
	row *store.Database,
	restart bool,
) (facts server.Facts, err error) {
	starting, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	if restart {
		memory := api.DatabaseSize(row.Size).MemoryMB()
		if err := server.Restart(starting, g, server.MemorySettings(memory)); err != nil {
			return facts, serverError(err)
		}
	}
	conn, err := server.Connect(starting, g, server.Maintained)
	if err != nil {
		return facts, serverError(err)
	}
	s.of(api.DatabaseID(row.ID)).setAdmin(ctx, conn) // the first login asks for its verifier with it
	if err := server.CreateOwner(starting, conn, RoleName, row.Verifier, DatabaseName); err != nil {
		return facts, serverError(err)
	}
	if facts, err = server.ReadFacts(starting, g); err != nil {
		return facts, serverError(err)
	}
	var want []string
	if row.Extensions != "" {
		if err := json.Unmarshal([]byte(row.Extensions), &want); err != nil {
			return facts, err
		}
	}
	for _, name := range want {
		if !facts.Has(name) {
			return facts, noExtension(name, row.Template, facts)
		}
	}
	return facts, nil
}

// serverError is the error of a server on which a statement or a program failed.
func serverError(err error) error {
	return api.Wrap(api.Unavailable, err, "the PostgreSQL server of the database failed: "+err.Error())
}

// extensionsOf returns the extensions of a server as a row has them.
func extensionsOf(facts server.Facts) (string, error) {
	return encode(slices.Sorted(maps.Keys(facts.Extensions)))
}

// finish writes that a database is ready, with its server.
func (s *Service) finish(
	ctx context.Context,
	row *store.Database,
	m *store.DatabaseMember,
	facts server.Facts,
) error {
	done, err := *row, error(nil)
	if done.Extensions, err = extensionsOf(facts); err != nil {
		return err
	}
	setFacts(&done, facts)
	return s.commit(ctx, done, row, m)
}

// commit writes that a database is ready, with its server. row becomes done.
func (s *Service) commit(ctx context.Context, done store.Database, row *store.Database, m *store.DatabaseMember) error {
	done.State, done.Instance, done.Error, done.Origin = store.DatabaseReady, "", "", ""
	done.Changed = store.Micros(time.Now())
	done.Used = done.Changed
	err := s.db.Write(ctx, "database ready", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.InsertDatabaseMember(ctx, m); err != nil {
			return err
		}
		return tx.UpdateDatabase(ctx, &done, store.DatabaseCreating, "state", "instance", "error", "origin", "version",
			"variant", "collation_version", "extensions", "changed", "used")
	})
	if err == nil {
		*row = done
		s.of(api.DatabaseID(row.ID)).touch()
		s.poke() // for its backups
	}
	return err
}
