package store

import (
	"context"

	"github.com/uptrace/bun"
)

// AppDomain is a row of app_domains: a custom domain of an app. Times are microseconds.
type AppDomain struct {
	bun.BaseModel `bun:"table:app_domains"`
	Domain        string `bun:"domain,pk"`
	App           string `bun:"app"`
	Workspace     string `bun:"workspace"`
	State         string `bun:"state"`
	Token         string `bun:"token"`
	Certificate   string `bun:"certificate"`
	Error         string `bun:"error"`
	Checked       int64  `bun:"checked"`
	Created       int64  `bun:"created"`
	Changed       int64  `bun:"changed"`
}

// InsertAppDomain adds a row; ErrExists if the domain is taken.
func (t *Tx) InsertAppDomain(ctx context.Context, d *AppDomain) error {
	_, err := t.db.NewInsert().Model(d).Exec(ctx)
	return exists(err, "domain", d.Domain)
}

// AppDomain reads one row.
func (t *Tx) AppDomain(ctx context.Context, domain string) (AppDomain, error) {
	d := AppDomain{Domain: domain}
	err := t.db.NewSelect().Model(&d).WherePK().Scan(ctx)
	return d, notFound(err, "domain", domain)
}

// AppDomains reads the domains of an app by name; app "" is all.
func (t *Tx) AppDomains(ctx context.Context, app string) ([]AppDomain, error) {
	rows := []AppDomain{}
	q := t.db.NewSelect().Model(&rows)
	if app != "" {
		q = q.Where("app = ?", app)
	}
	err := q.OrderBy("domain", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// UpdateAppDomain writes a row that is in state was; ErrNotFound if it is not.
func (t *Tx) UpdateAppDomain(ctx context.Context, d *AppDomain, was string) error {
	res, err := t.db.NewUpdate().Model(d).WherePK().Where("state = ?", was).Exec(ctx)
	return changed(res, err, "domain", d.Domain)
}

// DeleteAppDomain removes a domain of an app. A missing row is no error.
func (t *Tx) DeleteAppDomain(ctx context.Context, app, domain string) error {
	_, err := t.db.NewDelete().Model((*AppDomain)(nil)).Where("app = ?", app).Where("domain = ?", domain).Exec(ctx)
	return err
}
