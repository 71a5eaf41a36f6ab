package store

import (
	"context"

	"github.com/uptrace/bun"
)

// ActiveBuildStates are the states of builds that have not ended.
var ActiveBuildStates = []string{"queued", "running"}

// UnendedBuildStates are the active states and that of builds whose steps are awaited.
var UnendedBuildStates = []string{"queued", "running", "waiting"}

// Build is a row of builds. Times are microseconds.
type Build struct {
	bun.BaseModel `bun:"table:builds"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Template      string `bun:"template"` // id
	Name          string `bun:"name"`     // of the template
	State         string `bun:"state"`
	Owner         string `bun:"owner"`
	Attempt       int    `bun:"attempt"`
	Hash          string `bun:"hash"`
	Spec          string `bun:"spec"` // JSON
	Step          string `bun:"step"`
	Done          int    `bun:"done"`
	Steps         int    `bun:"steps"`
	Cached        int    `bun:"cached"`
	Error         string `bun:"error"`
	Code          string `bun:"code"`
	Bytes         int64  `bun:"bytes"`
	Created       int64  `bun:"created"`
	Started       int64  `bun:"started"`
	Ended         int64  `bun:"ended"`
}

// BuildLine is a row of build_logs.
type BuildLine struct {
	bun.BaseModel `bun:"table:build_logs"`
	Build         string `bun:"build,pk"`
	Seq           int64  `bun:"seq,pk"`
	At            int64  `bun:"at"`
	Level         string `bun:"level"`
	Step          string `bun:"step"`
	Line          string `bun:"line"`
}

// Layer is a row of layers.
type Layer struct {
	bun.BaseModel `bun:"table:layers"`
	Workspace     string `bun:"workspace,pk"`
	Name          string `bun:"name,pk"`
	Snapshot      string `bun:"snapshot"`
	Bytes         int64  `bun:"bytes"`
	Created       int64  `bun:"created"`
	Used          int64  `bun:"used"`
}

// InsertBuild adds a row; ErrExists if the id is taken.
func (t *Tx) InsertBuild(ctx context.Context, b *Build) error {
	row, err := sealed(t, b)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "build", b.ID)
}

// Build reads one row.
func (t *Tx) Build(ctx context.Context, id string) (Build, error) {
	b := Build{ID: id}
	if err := t.db.NewSelect().Model(&b).WherePK().Scan(ctx); err != nil {
		return b, notFound(err, "build", id)
	}
	return b, opened(t, &b)
}

// UpdateBuild writes the named columns of a row, or all if none are named.
//
// The row must be in one of the states was; ErrNotFound if it is not.
func (t *Tx) UpdateBuild(ctx context.Context, b *Build, was []string, columns ...string) error {
	row, err := sealed(t, b)
	if err != nil {
		return err
	}
	q := t.db.NewUpdate().Model(row).WherePK().Where("state IN (?)", bun.List(was))
	if len(columns) > 0 {
		q = q.Column(columns...)
	}
	res, err := q.Exec(ctx)
	return changed(res, err, "build", b.ID)
}

// BuildQuery selects rows, newest first. Zero fields select everything.
type BuildQuery struct {
	Workspace, Template, Hash string
	States                    []string
	EndedBefore               int64
	Limit                     int
}

// Builds reads the rows that q selects.
func (t *Tx) Builds(ctx context.Context, q BuildQuery) ([]Build, error) {
	var rows []Build
	s := t.db.NewSelect().Model(&rows).OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderDesc)
	if q.Workspace != "" {
		s = s.Where("workspace = ?", q.Workspace)
	}
	if q.Template != "" {
		s = s.Where("template = ?", q.Template)
	}
	if q.Hash != "" {
		s = s.Where("hash = ?", q.Hash)
	}
	if len(q.States) > 0 {
		s = s.Where("state IN (?)", bun.List(q.States))
	}
	if q.EndedBefore > 0 {
		s = s.Where("ended > 0").Where("ended < ?", q.EndedBefore)
	}
	if q.Limit > 0 {
		s = s.Limit(int64(q.Limit))
	}
	return openedList(t, rows, s.Scan(ctx))
}

// DeleteBuild removes a row with its log. A missing row is no error.
func (t *Tx) DeleteBuild(ctx context.Context, id string) error {
	if _, err := t.db.NewDelete().Model((*BuildLine)(nil)).Where("build = ?", id).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewDelete().Model((*Build)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// AppendBuildLines adds lines. The caller sets their numbers.
func (t *Tx) AppendBuildLines(ctx context.Context, lines []BuildLine) error {
	if len(lines) == 0 {
		return nil
	}
	_, err := t.db.NewInsert().Model(&lines).Exec(ctx)
	return err
}

// BuildLines reads at most limit lines of a build with numbers above after, in order.
func (t *Tx) BuildLines(ctx context.Context, build string, after int64, limit int) ([]BuildLine, error) {
	var rows []BuildLine
	err := t.db.NewSelect().Model(&rows).Where("build = ?", build).Where("seq > ?", after).
		OrderBy("seq", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return rows, err
}

// LastBuildLine returns the number of a build's last line, 0 if it has none.
func (t *Tx) LastBuildLine(ctx context.Context, build string) (int64, error) {
	var last int64
	err := t.db.NewSelect().
		Model((*BuildLine)(nil)).
		ColumnExpr("COALESCE(MAX(seq), 0)").
		Where("build = ?", build).
		Scan(ctx, &last)
	return last, err
}

// InsertLayer adds a row; ErrExists if a layer of that name exists.
func (t *Tx) InsertLayer(ctx context.Context, l *Layer) error {
	_, err := t.db.NewInsert().Model(l).Exec(ctx)
	return exists(err, "layer", l.Name)
}

// Layers reads the layers of a workspace, those used longest ago first.
//
// With names it reads only layers with one of them; with workspace "", those of all workspaces.
func (t *Tx) Layers(ctx context.Context, workspace string, names ...string) ([]Layer, error) {
	var rows []Layer
	q := t.db.NewSelect().Model(&rows).OrderBy("used", bun.OrderAsc).OrderBy("name", bun.OrderAsc)
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	if len(names) > 0 {
		q = q.Where("name IN (?)", bun.List(names))
	}
	return rows, q.Scan(ctx)
}

// TouchLayer writes when a layer was used last.
func (t *Tx) TouchLayer(ctx context.Context, workspace, name string, used int64) error {
	_, err := t.db.NewUpdate().
		Model((*Layer)(nil)).
		Set("used = ?", used).
		Where("workspace = ?", workspace).
		Where("name = ?", name).
		Exec(ctx)
	return err
}

// DeleteLayer removes a row. A missing row is no error.
func (t *Tx) DeleteLayer(ctx context.Context, workspace, name string) error {
	_, err := t.db.NewDelete().Model((*Layer)(nil)).Where("workspace = ?", workspace).Where("name = ?", name).Exec(ctx)
	return err
}
