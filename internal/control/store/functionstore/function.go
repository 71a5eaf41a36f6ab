package functionstore

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/pandastack/pandastack/internal/control/store"
)

// The states of the rows of functions, of their versions and of their machines.
const (
	Active   = "active"
	Deleting = "deleting"

	VersionBuilding = "building"
	VersionReady    = "ready"
	VersionFailed   = "failed"
	VersionDeleting = "deleting"

	MachineStarting = "starting"
	MachineReady    = "ready"
	MachineAsleep   = "asleep"
	MachineDeleting = "deleting"
)

// Function is a row of functions. Times are microseconds.
type Function struct {
	bun.BaseModel `bun:"table:functions"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Name          string `bun:"name"`
	State         string `bun:"state"`
	Runtime       string `bun:"runtime"`
	Entrypoint    string `bun:"entrypoint"`
	Template      string `bun:"template"`
	Settings      string `bun:"settings"`
	Env           string `bun:"env"`
	Secret        string `bun:"secret"`
	Auth          string `bun:"auth"`
	Revision      int64  `bun:"revision"`
	Numbered      int64  `bun:"numbered"`
	Version       int64  `bun:"version"`
	Generation    int64  `bun:"generation"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

func (f *Function) place() string { return "functions/" + f.ID }

func (f *Function) secrets() []secret {
	return []secret{{"env", &f.Env}, {"secret", &f.Secret}}
}

// InsertFunction adds a row; ErrExists if the id, or the name in the workspace, is taken.
func (t Tx) InsertFunction(ctx context.Context, f *Function) error {
	_, err := t.db.NewInsert().Model(sealed(t, f)).Exec(ctx)
	return store.Exists(err, "function", f.Name)
}

// Function reads one row by id.
func (t Tx) Function(ctx context.Context, id string) (Function, error) {
	f := Function{ID: id}
	if err := t.db.NewSelect().Model(&f).WherePK().Scan(ctx); err != nil {
		return f, store.NotFound(err, "function", id)
	}
	return f, opened(t, &f)
}

// ByName reads the row of a workspace with this name that is not being deleted.
func (t Tx) ByName(ctx context.Context, workspace, name string) (Function, error) {
	var f Function
	err := t.db.NewSelect().Model(&f).Where("workspace = ?", workspace).Where("name = ?", name).
		Where("state <> ?", Deleting).Scan(ctx)
	if err != nil {
		return f, store.NotFound(err, "function", name)
	}
	return f, opened(t, &f)
}

// Functions reads the functions of a workspace in a state, newest first. workspace "" and state "" are all.
func (t Tx) Functions(ctx context.Context, workspace, state string) ([]Function, error) {
	rows := []Function{}
	q := t.db.NewSelect().Model(&rows)
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	if state != "" {
		q = q.Where("state = ?", state)
	}
	err := q.OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return openedList[Function](t, rows, err)
}

// UpdateFunction writes the named columns of a row that is active; ErrNotFound if it is not. ErrExists says that
// another function of the workspace has the name.
func (t Tx) UpdateFunction(ctx context.Context, f *Function, columns ...string) error {
	res, err := t.db.NewUpdate().Model(sealed(t, f)).WherePK().Where("state = ?", Active).Column(columns...).Exec(ctx)
	return store.Changed(res, store.Exists(err, "function", f.Name), "function", f.ID)
}

// DeleteFunction removes a row that is being deleted, with everything that belongs to the function.
func (t Tx) DeleteFunction(ctx context.Context, id string) error {
	res, err := t.db.NewDelete().Model((*Function)(nil)).Where("id = ?", id).Where("state = ?", Deleting).
		Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	_, err = t.db.NewDelete().Model((*store.AppLogLine)(nil)).Where("deployment LIKE ?", id+"/%").Exec(ctx)
	if err != nil {
		return err
	}
	for _, model := range []any{
		(*Version)(nil), (*Alias)(nil), (*Machine)(nil), (*Run)(nil),
	} {
		if _, err := t.db.NewDelete().Model(model).Where("function = ?", id).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Count counts the functions of a workspace in any state. workspace "" is all.
func (t Tx) Count(ctx context.Context, workspace string) (int64, error) {
	q := t.db.NewSelect().Model((*Function)(nil))
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	n, err := q.Count(ctx)
	return int64(n), err
}

// Version is a row of function_versions. Times are microseconds.
type Version struct {
	bun.BaseModel `bun:"table:function_versions"`
	Function      string `bun:"function,pk"`
	Number        int64  `bun:"number,pk"`
	State         string `bun:"state"`
	Instance      string `bun:"instance"`
	Attempts      int64  `bun:"attempts"`
	Style         string `bun:"style"`
	Entrypoint    string `bun:"entrypoint"`
	Template      string `bun:"template"`
	Settings      string `bun:"settings"`
	Layer         string `bun:"layer"`
	Snapshot      string `bun:"snapshot"`
	Captured      int64  `bun:"captured"`
	Sandbox       string `bun:"sandbox"`
	Size          int64  `bun:"size"`
	Digest        string `bun:"digest"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
	Ready         int64  `bun:"ready"`
}

// InsertVersion adds a row; ErrExists if the number is taken.
func (t Tx) InsertVersion(ctx context.Context, v *Version) error {
	_, err := t.db.NewInsert().Model(v).Exec(ctx)
	return store.Exists(err, "version", fmt.Sprint(v.Number))
}

// Version reads one row.
func (t Tx) Version(ctx context.Context, function string, number int64) (Version, error) {
	v := Version{Function: function, Number: number}
	err := t.db.NewSelect().Model(&v).WherePK().Scan(ctx)
	return v, store.NotFound(err, "version", fmt.Sprint(number))
}

// Versions reads the versions of a function in a state, newest first. function "" and state "" are all.
func (t Tx) Versions(ctx context.Context, function, state string) ([]Version, error) {
	rows := []Version{}
	q := t.db.NewSelect().Model(&rows)
	if function != "" {
		q = q.Where("function = ?", function)
	}
	if state != "" {
		q = q.Where("state = ?", state)
	}
	err := q.OrderBy("function", bun.OrderAsc).OrderBy("number", bun.OrderDesc).Scan(ctx)
	return rows, err
}

// LatestVersions reads the newest version of each function of a workspace by function.
func (t Tx) LatestVersions(ctx context.Context, workspace string) (map[string]Version, error) {
	rows := []Version{}
	err := t.db.NewSelect().Model(&rows).
		Where("(function, number) IN (SELECT id, numbered FROM functions WHERE workspace = ?)", workspace).Scan(ctx)
	out := make(map[string]Version, len(rows))
	for _, v := range rows {
		out[v.Function] = v
	}
	return out, err
}

// UpdateVersion writes columns of a row that is in state was; ErrNotFound if it is not.
func (t Tx) UpdateVersion(ctx context.Context, v *Version, was string, columns ...string) error {
	res, err := t.db.NewUpdate().Model(v).WherePK().Where("state = ?", was).Column(columns...).Exec(ctx)
	return store.Changed(res, err, "version", fmt.Sprint(v.Number))
}

// DeleteVersion removes a row and the log of its build. A missing row is no error.
func (t Tx) DeleteVersion(ctx context.Context, function string, number int64) error {
	_, err := t.db.NewDelete().Model((*Version)(nil)).Where("function = ?", function).
		Where("number = ?", number).Exec(ctx)
	if err != nil {
		return err
	}
	_, err = t.db.NewDelete().Model((*store.AppLogLine)(nil)).
		Where("deployment = ?", fmt.Sprintf("%s/%d", function, number)).Exec(ctx)
	return err
}

// CodeUsed reports whether a version of any function has a bundle.
func (t Tx) CodeUsed(ctx context.Context, digest string) (bool, error) {
	n, err := t.db.NewSelect().Model((*Version)(nil)).Where("digest = ?", digest).Count(ctx)
	return n > 0, err
}

// Alias is a row of function_aliases. Times are microseconds.
type Alias struct {
	bun.BaseModel `bun:"table:function_aliases"`
	Function      string `bun:"function,pk"`
	Name          string `bun:"name,pk"`
	Versions      string `bun:"versions"`
	Changed       int64  `bun:"changed"`
}

// PutAlias adds or replaces a row.
func (t Tx) PutAlias(ctx context.Context, a *Alias) error {
	_, err := t.db.NewInsert().Model(a).On("CONFLICT (function, name) DO UPDATE").
		Set("versions = EXCLUDED.versions").Set("changed = EXCLUDED.changed").Exec(ctx)
	return err
}

// Aliases reads the aliases of a function by name; function "" is all.
func (t Tx) Aliases(ctx context.Context, function string) ([]Alias, error) {
	rows := []Alias{}
	q := t.db.NewSelect().Model(&rows)
	if function != "" {
		q = q.Where("function = ?", function)
	}
	err := q.OrderBy("function", bun.OrderAsc).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// DeleteAlias removes a row; ErrNotFound if there is none.
func (t Tx) DeleteAlias(ctx context.Context, function, name string) error {
	res, err := t.db.NewDelete().Model((*Alias)(nil)).Where("function = ?", function).
		Where("name = ?", name).Exec(ctx)
	return store.Changed(res, err, "alias", name)
}

// Machine is a row of function_machines: a kept machine of a function. Times are microseconds.
type Machine struct {
	bun.BaseModel `bun:"table:function_machines"`
	ID            string `bun:"id,pk"`
	Function      string `bun:"function"`
	Version       int64  `bun:"version"`
	Sandbox       string `bun:"sandbox"`
	Instance      string `bun:"instance"`
	State         string `bun:"state"`
	Created       int64  `bun:"created"`
	Used          int64  `bun:"used"`
}

// InsertMachine adds a row; ErrExists if the id is taken.
func (t Tx) InsertMachine(ctx context.Context, m *Machine) error {
	_, err := t.db.NewInsert().Model(m).Exec(ctx)
	return store.Exists(err, "machine", m.ID)
}

// Machines reads the machines of a function, oldest first; function "" is all.
func (t Tx) Machines(ctx context.Context, function string) ([]Machine, error) {
	rows := []Machine{}
	q := t.db.NewSelect().Model(&rows)
	if function != "" {
		q = q.Where("function = ?", function)
	}
	err := q.OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// PutMachineState writes the sandbox and the state of a row; ErrNotFound if there is none.
func (t Tx) PutMachineState(ctx context.Context, m *Machine) error {
	res, err := t.db.NewUpdate().Model(m).WherePK().Column("sandbox", "state").Exec(ctx)
	return store.Changed(res, err, "machine", m.ID)
}

// TouchMachines writes when a process has last used its machines.
func (t Tx) TouchMachines(ctx context.Context, instance string, at int64) error {
	_, err := t.db.NewUpdate().Model((*Machine)(nil)).Set("used = ?", at).Where("instance = ?", instance).Exec(ctx)
	return err
}

// DeleteMachine removes a row. A missing row is no error.
func (t Tx) DeleteMachine(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Machine)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}
