package store

import (
	"context"
	"errors"

	"github.com/uptrace/bun"
)

// The states of the rows of databases. Only a ready database has a server that clients can reach.
const (
	DatabaseCreating  = "creating"
	DatabaseReady     = "ready"
	DatabaseRestoring = "restoring"
	DatabaseFailed    = "failed"
	DatabaseDeleting  = "deleting"
)

// The roles and states of the servers of a database.
const (
	MemberPrimary = "primary"
	MemberReplica = "replica"

	MemberCreating = "creating"
	MemberReady    = "ready"
	MemberFailed   = "failed"
	MemberDeleting = "deleting"
)

// The states of a rehearsal of a restore.
const (
	RehearsalRunning = "running"
	RehearsalPassed  = "passed"
	RehearsalFailed  = "failed"
)

// Database is a row of databases. Times are microseconds.
type Database struct {
	bun.BaseModel `bun:"table:databases"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Label         string `bun:"label"`
	State         string `bun:"state"`
	Instance      string `bun:"instance"`
	Size          string `bun:"size"`
	VCPUs         int    `bun:"vcpus"`
	Template      string `bun:"template"`
	Version       string `bun:"version"`
	Variant       string `bun:"variant"`
	Collation     string `bun:"collation_version"`
	Extensions    string `bun:"extensions"`
	Password      string `bun:"password"`
	Verifier      string `bun:"verifier"`
	BrokerToken   string `bun:"broker_token"`
	AlwaysOn      bool   `bun:"always_on"`
	IdleSeconds   int64  `bun:"idle_seconds"`
	Durability    string `bun:"durability"`
	StorageMaxMiB int64  `bun:"storage_max_mib"`
	Networks      string `bun:"networks"`
	Replicas      int    `bun:"replicas"`
	ClonedFrom    string `bun:"cloned_from"`
	Origin        string `bun:"origin"`
	SchemaOnly    bool   `bun:"schema_only"`
	Expires       int64  `bun:"expires"`
	Used          int64  `bun:"used"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

func (d *Database) place() string { return "databases/" + d.ID }

func (d *Database) visit(v visitor) error {
	return errors.Join(v.text("password", &d.Password), v.text("verifier", &d.Verifier),
		v.text("broker_token", &d.BrokerToken))
}

// InsertDatabase adds a row; ErrExists if the id is taken.
func (t *Tx) InsertDatabase(ctx context.Context, d *Database) error {
	row, err := sealed(t, d)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "database", d.ID)
}

// Database reads one row.
func (t *Tx) Database(ctx context.Context, id string) (Database, error) {
	d := Database{ID: id}
	if err := t.db.NewSelect().Model(&d).WherePK().Scan(ctx); err != nil {
		return d, notFound(err, "database", id)
	}
	return d, opened(t, &d)
}

// DatabaseQuery selects databases. Zero fields select everything.
type DatabaseQuery struct {
	Workspace  string
	State      string
	ClonedFrom string
	ExpiredBy  int64 // it ends by then
}

// Databases reads the rows that q selects, newest first.
func (t *Tx) Databases(ctx context.Context, q DatabaseQuery) ([]Database, error) {
	rows := []Database{}
	s := t.db.NewSelect().Model(&rows)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.State != "" {
		s = s.Where("state = ?", q.State)
	}
	if q.ClonedFrom != "" {
		s = s.Where("cloned_from = ?", q.ClonedFrom)
	}
	if q.ExpiredBy > 0 {
		s = s.Where("expires > 0").Where("expires <= ?", q.ExpiredBy)
	}
	err := s.OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return openedList[Database](t, rows, err)
}

// UpdateDatabase writes the named columns of a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateDatabase(ctx context.Context, d *Database, was string, columns ...string) error {
	row, err := sealed(t, d)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was).Column(columns...).Exec(ctx)
	return changed(res, err, "database", d.ID)
}

// TouchDatabase writes when a database was last in use.
func (t *Tx) TouchDatabase(ctx context.Context, id string, at int64) error {
	_, err := t.db.NewUpdate().Model((*Database)(nil)).Set("used = ?", at).Where("id = ?", id).Where("used < ?", at).
		Exec(ctx)
	return err
}

// DeleteDatabase removes a row that is being deleted, with its roles and rehearsals. A missing row is no error.
func (t *Tx) DeleteDatabase(ctx context.Context, id string) error {
	res, err := t.db.NewDelete().Model((*Database)(nil)).Where("id = ?", id).
		Where("state = ?", DatabaseDeleting).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if err := t.SetDatabaseRoles(ctx, id, nil); err != nil {
		return err
	}
	_, err = t.db.NewDelete().Model((*DatabaseRehearsal)(nil)).Where("database_id = ?", id).Exec(ctx)
	return err
}

// CountDatabases counts the databases of a workspace in any state. workspace "" is all.
func (t *Tx) CountDatabases(ctx context.Context, workspace string) (int64, error) {
	q := t.db.NewSelect().Model((*Database)(nil))
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	n, err := q.Count(ctx)
	return int64(n), err
}

// DatabaseMember is a row of database_members: a server of a database.
type DatabaseMember struct {
	bun.BaseModel `bun:"table:database_members"`
	ID            string `bun:"id,pk"`
	Database      string `bun:"database_id"`
	Role          string `bun:"role"`
	State         string `bun:"state"`
	Sandbox       string `bun:"sandbox"`
	Volume        string `bun:"volume"`
	Timeline      int64  `bun:"timeline"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
}

// InsertDatabaseMember adds a row; ErrExists if the id is taken, or it is a second primary.
func (t *Tx) InsertDatabaseMember(ctx context.Context, m *DatabaseMember) error {
	_, err := t.db.NewInsert().Model(m).Exec(ctx)
	return exists(err, "server of a database", m.ID)
}

// DatabaseMembers reads the servers of a database, the primary first; database "" is all.
func (t *Tx) DatabaseMembers(ctx context.Context, database string) ([]DatabaseMember, error) {
	rows := []DatabaseMember{}
	q := t.db.NewSelect().Model(&rows)
	if database != "" {
		q = q.Where("database_id = ?", database)
	}
	err := q.OrderBy("role", bun.OrderAsc).OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateDatabaseMember writes a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateDatabaseMember(ctx context.Context, m *DatabaseMember, was string) error {
	res, err := t.db.NewUpdate().Model(m).WherePK().Where("state = ?", was).Exec(ctx)
	return changed(res, err, "server of a database", m.ID)
}

// DeleteDatabaseMember removes a row. A missing row is no error.
func (t *Tx) DeleteDatabaseMember(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*DatabaseMember)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// DatabaseRole is a row of database_roles.
type DatabaseRole struct {
	bun.BaseModel `bun:"table:database_roles"`
	Database      string `bun:"database_id,pk"`
	Name          string `bun:"name,pk"`
	Verifier      string `bun:"verifier"`
}

func (r *DatabaseRole) place() string         { return "database_roles/" + r.Database + "/" + r.Name }
func (r *DatabaseRole) visit(v visitor) error { return v.text("verifier", &r.Verifier) }

// DatabaseRole reads a role of a database.
func (t *Tx) DatabaseRole(ctx context.Context, database, name string) (DatabaseRole, error) {
	r := DatabaseRole{Database: database, Name: name}
	if err := t.db.NewSelect().Model(&r).WherePK().Scan(ctx); err != nil {
		return r, notFound(err, "role", name)
	}
	return r, opened(t, &r)
}

// DatabaseRoles reads the roles of a database, by name.
func (t *Tx) DatabaseRoles(ctx context.Context, database string) ([]DatabaseRole, error) {
	rows := []DatabaseRole{}
	err := t.db.NewSelect().Model(&rows).Where("database_id = ?", database).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return openedList[DatabaseRole](t, rows, err)
}

// SetDatabaseRoles replaces the roles of a database.
func (t *Tx) SetDatabaseRoles(ctx context.Context, database string, roles []DatabaseRole) error {
	_, err := t.db.NewDelete().Model((*DatabaseRole)(nil)).Where("database_id = ?", database).Exec(ctx)
	if err != nil {
		return err
	}
	for i := range roles {
		roles[i].Database = database
		row, err := sealed(t, &roles[i])
		if err != nil {
			return err
		}
		if _, err := t.db.NewInsert().Model(row).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// DatabaseRehearsal is a row of database_rehearsals. Times are microseconds.
type DatabaseRehearsal struct {
	bun.BaseModel `bun:"table:database_rehearsals"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Database      string `bun:"database_id"`
	State         string `bun:"state"`
	Target        int64  `bun:"target"`
	Bytes         int64  `bun:"bytes"`
	Error         string `bun:"error"`
	Started       int64  `bun:"started"`
	Ended         int64  `bun:"ended"`
}

// PutDatabaseRehearsal adds or replaces a row.
func (t *Tx) PutDatabaseRehearsal(ctx context.Context, r *DatabaseRehearsal) error {
	if _, err := t.db.NewDelete().Model((*DatabaseRehearsal)(nil)).Where("id = ?", r.ID).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewInsert().Model(r).Exec(ctx)
	return err
}

// DatabaseRehearsals reads the last rehearsals of a database, newest first; database "" is all.
func (t *Tx) DatabaseRehearsals(ctx context.Context, database string, limit int64) ([]DatabaseRehearsal, error) {
	rows := []DatabaseRehearsal{}
	q := t.db.NewSelect().Model(&rows)
	if database != "" {
		q = q.Where("database_id = ?", database)
	}
	err := q.OrderBy("started", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Limit(limit).Scan(ctx)
	return rows, err
}
