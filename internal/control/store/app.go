package store

import (
	"context"
	"errors"

	"github.com/uptrace/bun"
)

// The states of the rows of apps and of their replicas.
const (
	AppActive   = "active"
	AppDeleting = "deleting"

	ReplicaStarting = "starting"
	ReplicaReady    = "ready"
	ReplicaSleeping = "sleeping" // it is being put to sleep
	ReplicaAsleep   = "asleep"
	ReplicaDraining = "draining"
	ReplicaDeleting = "deleting"
)

// App is a row of apps. Times are microseconds.
type App struct {
	bun.BaseModel `bun:"table:apps"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Name          string `bun:"name"`
	State         string `bun:"state"`
	Instance      string `bun:"instance"`
	Settings      string `bun:"settings"`
	Found         string `bun:"found"`
	Deployment    string `bun:"deployment"`
	Generation    int64  `bun:"generation"`
	Numbered      int64  `bun:"numbered"`
	HookSecret    string `bun:"hook_secret"`
	DeployKey     string `bun:"deploy_key"`
	PreviewOf     string `bun:"preview_of"`
	PullRequest   int64  `bun:"pull_request"`
	Preview       string `bun:"preview"`
	Repository    string `bun:"repository"`
	Error         string `bun:"error"`
	Used          int64  `bun:"used"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

func (a *App) place() string { return "apps/" + a.ID }

func (a *App) visit(v visitor) error {
	return errors.Join(v.text("settings", &a.Settings), v.text("hook_secret", &a.HookSecret),
		v.text("deploy_key", &a.DeployKey))
}

// InsertApp adds a row; ErrExists if the id or the name is taken.
func (t *Tx) InsertApp(ctx context.Context, a *App) error {
	row, err := sealed(t, a)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "app", a.Name)
}

// App reads one row by id.
func (t *Tx) App(ctx context.Context, id string) (App, error) {
	a := App{ID: id}
	if err := t.db.NewSelect().Model(&a).WherePK().Scan(ctx); err != nil {
		return a, notFound(err, "app", id)
	}
	return a, opened(t, &a)
}

// AppByName reads the row with this name that is not being deleted.
func (t *Tx) AppByName(ctx context.Context, name string) (App, error) {
	var a App
	err := t.db.NewSelect().Model(&a).Where("name = ?", name).Where("state <> ?", AppDeleting).Scan(ctx)
	if err != nil {
		return a, notFound(err, "app", name)
	}
	return a, opened(t, &a)
}

// AppQuery selects apps. Zero fields select everything.
type AppQuery struct {
	Workspace  string
	State      string
	PreviewOf  string
	Repository string
}

// Apps reads the rows that q selects, newest first.
func (t *Tx) Apps(ctx context.Context, q AppQuery) ([]App, error) {
	rows := []App{}
	s := t.db.NewSelect().Model(&rows)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.State != "" {
		s = s.Where("state = ?", q.State)
	}
	if q.PreviewOf != "" {
		s = s.Where("preview_of = ?", q.PreviewOf)
	}
	if q.Repository != "" {
		s = s.Where("repository = ?", q.Repository)
	}
	err := s.OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return openedList[App](t, rows, err)
}

// UpdateApp writes the named columns of a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateApp(ctx context.Context, a *App, was string, columns ...string) error {
	row, err := sealed(t, a)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was).Column(columns...).Exec(ctx)
	return changed(res, err, "app", a.ID)
}

// TouchApp writes when an app was last requested.
func (t *Tx) TouchApp(ctx context.Context, id string, at int64) error {
	_, err := t.db.NewUpdate().Model((*App)(nil)).Set("used = ?", at).Where("id = ?", id).Where("used < ?", at).
		Exec(ctx)
	return err
}

// DeleteApp removes a row that is being deleted, with everything that belongs to the app.
func (t *Tx) DeleteApp(ctx context.Context, id string) error {
	res, err := t.db.NewDelete().Model((*App)(nil)).Where("id = ?", id).Where("state = ?", AppDeleting).Exec(ctx)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err
	}
	_, err = t.db.NewDelete().Model((*AppLogLine)(nil)).
		Where("deployment = ? OR deployment IN (SELECT id FROM app_deployments WHERE app = ?)", id, id).Exec(ctx)
	if err != nil {
		return err
	}
	for _, model := range []any{(*Deployment)(nil), (*Replica)(nil), (*AppVariable)(nil), (*AppDomain)(nil)} {
		if _, err := t.db.NewDelete().Model(model).Where("app = ?", id).Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// CountApps counts the apps of a workspace in any state. workspace "" is all.
func (t *Tx) CountApps(ctx context.Context, workspace string) (int64, error) {
	q := t.db.NewSelect().Model((*App)(nil))
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	n, err := q.Count(ctx)
	return int64(n), err
}

// Deployment is a row of app_deployments. Times are microseconds.
type Deployment struct {
	bun.BaseModel `bun:"table:app_deployments"`
	ID            string `bun:"id,pk"`
	App           string `bun:"app"`
	Workspace     string `bun:"workspace"`
	Number        int64  `bun:"number"`
	State         string `bun:"state"`
	Step          string `bun:"step"`
	Source        string `bun:"source"`
	Settings      string `bun:"settings"`
	Result        string `bun:"result"`
	Machine       string `bun:"machine"`
	Attempts      int64  `bun:"attempts"`
	Linked        string `bun:"linked"`
	Built         string `bun:"built"`
	Ready         string `bun:"ready"`
	GitRef        string `bun:"git_ref"`
	GitCommit     string `bun:"git_commit"`
	Message       string `bun:"message"`
	Code          string `bun:"code"`
	Error         string `bun:"error"`
	Creator       string `bun:"creator"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
	Ended         int64  `bun:"ended"`
}

func (d *Deployment) place() string         { return "app_deployments/" + d.ID }
func (d *Deployment) visit(v visitor) error { return v.text("settings", &d.Settings) }

// InsertDeployment adds a row; ErrExists if the id or the number is taken.
func (t *Tx) InsertDeployment(ctx context.Context, d *Deployment) error {
	row, err := sealed(t, d)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "deployment", d.ID)
}

// Deployment reads one row.
func (t *Tx) Deployment(ctx context.Context, id string) (Deployment, error) {
	d := Deployment{ID: id}
	if err := t.db.NewSelect().Model(&d).WherePK().Scan(ctx); err != nil {
		return d, notFound(err, "deployment", id)
	}
	return d, opened(t, &d)
}

// DeploymentQuery selects deployments. Zero fields select everything.
type DeploymentQuery struct {
	App    string
	States []string
	Limit  int
}

// Deployments reads the rows that q selects, newest first.
func (t *Tx) Deployments(ctx context.Context, q DeploymentQuery) ([]Deployment, error) {
	rows := []Deployment{}
	s := t.db.NewSelect().Model(&rows)
	if q.App != "" {
		s = s.Where("app = ?", q.App)
	}
	if len(q.States) > 0 {
		s = s.Where("state IN (?)", bun.List(q.States))
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	err := s.OrderBy("created", bun.OrderDesc).OrderBy("number", bun.OrderDesc).Scan(ctx)
	return openedList[Deployment](t, rows, err)
}

// UpdateDeployment writes the named columns of a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateDeployment(ctx context.Context, d *Deployment, was string, columns ...string) error {
	row, err := sealed(t, d)
	if err != nil {
		return err
	}
	res, err := t.db.NewUpdate().Model(row).WherePK().Where("state = ?", was).Column(columns...).Exec(ctx)
	return changed(res, err, "deployment", d.ID)
}

// DeleteDeployment removes a row with its log. A missing row is no error.
func (t *Tx) DeleteDeployment(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*AppLogLine)(nil)).Where("deployment = ?", id).Exec(ctx)
	if err == nil {
		_, err = t.db.NewDelete().Model((*Deployment)(nil)).Where("id = ?", id).Exec(ctx)
	}
	return err
}

// Replica is a row of app_replicas: a machine that serves an app.
type Replica struct {
	bun.BaseModel `bun:"table:app_replicas"`
	ID            string `bun:"id,pk"`
	App           string `bun:"app"`
	Deployment    string `bun:"deployment"`
	Sandbox       string `bun:"sandbox"`
	State         string `bun:"state"`
	Restarts      int64  `bun:"restarts"`
	Error         string `bun:"error"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

// InsertReplica adds a row; ErrExists if the id is taken.
func (t *Tx) InsertReplica(ctx context.Context, r *Replica) error {
	_, err := t.db.NewInsert().Model(r).Exec(ctx)
	return exists(err, "replica", r.ID)
}

// Replicas reads the replicas of an app, oldest first; app "" is all.
func (t *Tx) Replicas(ctx context.Context, app string) ([]Replica, error) {
	rows := []Replica{}
	q := t.db.NewSelect().Model(&rows)
	if app != "" {
		q = q.Where("app = ?", app)
	}
	err := q.OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateReplica writes a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateReplica(ctx context.Context, r *Replica, was string) error {
	res, err := t.db.NewUpdate().Model(r).WherePK().Where("state = ?", was).Exec(ctx)
	return changed(res, err, "replica", r.ID)
}

// DeleteReplica removes a row. A missing row is no error.
func (t *Tx) DeleteReplica(ctx context.Context, id string) error {
	_, err := t.db.NewDelete().Model((*Replica)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// AppVariable is a row of app_variables. App is an app, or
// "preview-repo/<workspace>/<id>" for the previews of a repository.
type AppVariable struct {
	bun.BaseModel `bun:"table:app_variables"`
	App           string `bun:"app,pk"`
	Scope         string `bun:"scope,pk"`
	Name          string `bun:"name,pk"`
	Value         string `bun:"value"`
	Secret        bool   `bun:"secret"`
	Creator       string `bun:"creator"`
	Changed       int64  `bun:"changed"`
}

func (a *AppVariable) place() string         { return "app_variables/" + a.App + "/" + a.Scope + "/" + a.Name }
func (a *AppVariable) visit(v visitor) error { return v.text("value", &a.Value) }

// PutAppVariable adds or replaces a row.
func (t *Tx) PutAppVariable(ctx context.Context, a *AppVariable) error {
	if err := t.DeleteAppVariable(ctx, a.App, a.Scope, a.Name); err != nil {
		return err
	}
	row, err := sealed(t, a)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return err
}

// AppVariables reads the variables of an app by name and scope.
func (t *Tx) AppVariables(ctx context.Context, app string) ([]AppVariable, error) {
	rows := []AppVariable{}
	err := t.db.NewSelect().Model(&rows).Where("app = ?", app).OrderBy("name", bun.OrderAsc).
		OrderBy("scope", bun.OrderAsc).Scan(ctx)
	return openedList[AppVariable](t, rows, err)
}

// DeleteAppVariable removes a row; scope "" is every scope. A missing row is no error.
func (t *Tx) DeleteAppVariable(ctx context.Context, app, scope, name string) error {
	q := t.db.NewDelete().Model((*AppVariable)(nil)).Where("app = ?", app).Where("name = ?", name)
	if scope != "" {
		q = q.Where("scope = ?", scope)
	}
	_, err := q.Exec(ctx)
	return err
}

// AppLogLine is a row of app_log_lines: a line of the log of a deployment, or of the output of an app's program.
type AppLogLine struct {
	bun.BaseModel `bun:"table:app_log_lines"`
	Deployment    string `bun:"deployment,pk"` // or an app
	Number        int64  `bun:"number,pk"`
	Created       int64  `bun:"created"`
	Level         string `bun:"level"`
	Step          string `bun:"step"`
	Line          string `bun:"line"`
}

// AppendAppLog adds lines. A line that exists is left as it is.
func (t *Tx) AppendAppLog(ctx context.Context, lines []AppLogLine) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := t.db.NewInsert().Model(&lines).On("CONFLICT DO NOTHING").Exec(ctx)
	return err
}

// AppLog reads up to limit lines of a deployment after the line with the number after.
func (t *Tx) AppLog(ctx context.Context, deployment string, after int64, limit int) ([]AppLogLine, error) {
	rows := []AppLogLine{}
	err := t.db.NewSelect().Model(&rows).Where("deployment = ?", deployment).Where("number > ?", after).
		OrderBy("number", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return rows, err
}

// TrimAppLog removes the lines up to a number.
func (t *Tx) TrimAppLog(ctx context.Context, deployment string, upTo int64) error {
	_, err := t.db.NewDelete().Model((*AppLogLine)(nil)).Where("deployment = ?", deployment).
		Where("number <= ?", upTo).Exec(ctx)
	return err
}

// LastAppLog reads the number of the last line of a deployment; 0 if it has none.
func (t *Tx) LastAppLog(ctx context.Context, deployment string) (int64, error) {
	var last int64
	err := t.db.NewSelect().Model((*AppLogLine)(nil)).ColumnExpr("COALESCE(MAX(number), 0)").
		Where("deployment = ?", deployment).Scan(ctx, &last)
	return last, err
}
