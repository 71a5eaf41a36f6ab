package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Template is a row of templates: one that a user built. Everyone says that all workspaces may use it.
type Template struct {
	bun.BaseModel `bun:"table:templates"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Name          string `bun:"name"`
	Everyone      bool   `bun:"everyone"`
	Description   string `bun:"description"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

// Version is a row of versions: a result of a build, whose id is its name on the host.
type Version struct {
	bun.BaseModel `bun:"table:versions"`
	ID            string `bun:"id,pk"`
	Template      string `bun:"template"`
	Hash          string `bun:"hash"`
	Base          string `bun:"base"`
	VCPUs         int    `bun:"vcpus"`
	MemoryMiB     int    `bun:"memory_mib"`
	DiskMiB       int    `bun:"disk_mib"`
	Bytes         int64  `bun:"bytes"`
	User          string `bun:"user_name"`
	Workdir       string `bun:"workdir"`
	Env           Pairs  `bun:"env"`
	Start         string `bun:"start_cmd"`
	Ready         string `bun:"ready_cmd"`
	Limits        string `bun:"limits"` // JSON: of its sandboxes; "": the host's
	Created       int64  `bun:"created"`
}

// Tag is a row of tags: a word that means a version of a template.
type Tag struct {
	bun.BaseModel `bun:"table:tags"`
	Template      string `bun:"template,pk"`
	Tag           string `bun:"tag,pk"`
	Version       string `bun:"version"`
	Created       int64  `bun:"created"`
}

// InsertTemplate adds a row; ErrExists if the workspace, or everyone, has one of that name.
func (t *Tx) InsertTemplate(ctx context.Context, row *Template) error {
	_, err := t.db.NewInsert().Model(row).Exec(ctx)
	return exists(err, "template", row.Name)
}

// UpdateTemplate writes the named columns of a row; ErrNotFound if there is none.
func (t *Tx) UpdateTemplate(ctx context.Context, row *Template, columns ...string) error {
	res, err := t.db.NewUpdate().Model(row).WherePK().Column(columns...).Exec(ctx)
	return changed(res, exists(err, "template", row.Name), "template", row.ID)
}

// TemplateNamed reads the row of a workspace with a name.
func (t *Tx) TemplateNamed(ctx context.Context, workspace, name string) (Template, error) {
	var row Template
	err := t.db.NewSelect().Model(&row).Where("workspace = ?", workspace).Where("name = ?", name).Scan(ctx)
	return row, notFound(err, "template", name)
}

// Template reads one row by id.
func (t *Tx) Template(ctx context.Context, id string) (Template, error) {
	row := Template{ID: id}
	err := t.db.NewSelect().Model(&row).WherePK().Scan(ctx)
	return row, notFound(err, "template", id)
}

// Templates reads the rows that a workspace may use, by name; "" is all.
func (t *Tx) Templates(ctx context.Context, workspace string) ([]Template, error) {
	var rows []Template
	q := t.db.NewSelect().Model(&rows).OrderBy("name", bun.OrderAsc).OrderBy("id", bun.OrderAsc)
	if workspace != "" {
		q = q.Where("(workspace = ? OR everyone)", workspace)
	}
	return rows, q.Scan(ctx)
}

// DeleteTemplate removes a row with its versions and tags. A missing row is no error.
func (t *Tx) DeleteTemplate(ctx context.Context, id string) error {
	for _, model := range []any{(*Tag)(nil), (*Version)(nil)} {
		if _, err := t.db.NewDelete().Model(model).Where("template = ?", id).Exec(ctx); err != nil {
			return err
		}
	}
	_, err := t.db.NewDelete().Model((*Template)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// InsertVersion adds a row; ErrExists if the id is taken.
func (t *Tx) InsertVersion(ctx context.Context, row *Version) error {
	stored, err := sealed(t, row)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(stored).Exec(ctx)
	return exists(err, "version", row.ID)
}

// Version reads one row.
func (t *Tx) Version(ctx context.Context, id string) (Version, error) {
	row := Version{ID: id}
	if err := t.db.NewSelect().Model(&row).WherePK().Scan(ctx); err != nil {
		return row, notFound(err, "version", id)
	}
	return row, opened(t, &row)
}

// Versions reads the versions of a template, newest first; of all templates for "".
func (t *Tx) Versions(ctx context.Context, template string) ([]Version, error) {
	var rows []Version
	q := t.db.NewSelect().Model(&rows).OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderDesc)
	if template != "" {
		q = q.Where("template = ?", template)
	}
	return openedList(t, rows, q.Scan(ctx))
}

// DeleteVersion removes a version and the tags that mean it. A missing row is no error.
func (t *Tx) DeleteVersion(ctx context.Context, id string) error {
	if _, err := t.db.NewDelete().Model((*Tag)(nil)).Where("version = ?", id).Exec(ctx); err != nil {
		return err
	}
	_, err := t.db.NewDelete().Model((*Version)(nil)).Where("id = ?", id).Exec(ctx)
	return err
}

// PutTag lets a tag mean a version.
func (t *Tx) PutTag(ctx context.Context, row *Tag) error {
	_, err := t.db.NewInsert().Model(row).On("CONFLICT (template, tag) DO UPDATE").
		Set("version = EXCLUDED.version").Set("created = EXCLUDED.created").Exec(ctx)
	return err
}

// Tags reads the tags of a template by tag; of all templates for "".
func (t *Tx) Tags(ctx context.Context, template string) ([]Tag, error) {
	var rows []Tag
	q := t.db.NewSelect().Model(&rows).OrderBy("template", bun.OrderAsc).OrderBy("tag", bun.OrderAsc)
	if template != "" {
		q = q.Where("template = ?", template)
	}
	return rows, q.Scan(ctx)
}

// DeleteTag removes a tag; ErrNotFound if there is none.
func (t *Tx) DeleteTag(ctx context.Context, template, tag string) error {
	res, err := t.db.NewDelete().Model((*Tag)(nil)).Where("template = ?", template).Where("tag = ?", tag).Exec(ctx)
	return changed(res, err, "tag", tag)
}

// Alias is a row of aliases: another name of a template.
type Alias struct {
	bun.BaseModel `bun:"table:aliases"`
	Name          string `bun:"name,pk"`
	Template      string `bun:"template"`
	Created       int64  `bun:"created"`
}

// PutAlias adds another name or lets it mean another template.
func (t *Tx) PutAlias(ctx context.Context, a *Alias) error {
	_, err := t.db.NewInsert().Model(a).On("CONFLICT (name) DO UPDATE").Set("template = EXCLUDED.template").Exec(ctx)
	return err
}

// Aliases reads all other names, by name.
func (t *Tx) Aliases(ctx context.Context) ([]Alias, error) {
	var rows []Alias
	err := t.db.NewSelect().Model(&rows).OrderBy("name", bun.OrderAsc).Scan(ctx)
	return rows, err
}
