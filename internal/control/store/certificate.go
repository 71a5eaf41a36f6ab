package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Certificate is a row of certificates: a value of the client of the authority of certificates, by its name.
type Certificate struct {
	bun.BaseModel `bun:"table:certificates"`
	Name          string `bun:"name,pk"`
	Value         string `bun:"value"`
	Changed       int64  `bun:"changed"`
}

func (c *Certificate) place() string         { return "certificates/" + c.Name }
func (c *Certificate) visit(v visitor) error { return v.text("value", &c.Value) }

// PutCertificate writes a row, in the place of one that exists.
func (t *Tx) PutCertificate(ctx context.Context, c *Certificate) error {
	row, err := sealed(t, c)
	if err != nil {
		return err
	}
	_, err = t.db.NewInsert().Model(row).On("CONFLICT (name) DO UPDATE").Set("value = EXCLUDED.value").
		Set("changed = EXCLUDED.changed").Exec(ctx)
	return err
}

// Certificate reads one row.
func (t *Tx) Certificate(ctx context.Context, name string) (Certificate, error) {
	c := Certificate{Name: name}
	if err := t.db.NewSelect().Model(&c).WherePK().Scan(ctx); err != nil {
		return c, notFound(err, "certificate", name)
	}
	return c, opened(t, &c)
}

// CertificateNames reads the names of all rows, in their order.
func (t *Tx) CertificateNames(ctx context.Context) ([]string, error) {
	names := []string{}
	err := t.db.NewSelect().Model((*Certificate)(nil)).Column("name").OrderBy("name", bun.OrderAsc).Scan(ctx, &names)
	return names, err
}

// DeleteCertificates removes rows by name. Missing ones are no error.
func (t *Tx) DeleteCertificates(ctx context.Context, names []string) error {
	if len(names) == 0 {
		return nil
	}
	_, err := t.db.NewDelete().Model((*Certificate)(nil)).Where("name IN (?)", bun.List(names)).Exec(ctx)
	return err
}

// CertificateLock is a row of certificate_locks: a lease on a name. Times are microseconds.
type CertificateLock struct {
	bun.BaseModel `bun:"table:certificate_locks"`
	Name          string `bun:"name,pk"`
	Holder        string `bun:"holder"`
	Expires       int64  `bun:"expires"`
}

// TakeCertificateLock takes or extends the lease of l.Holder, and reports whether it has the lease.
func (t *Tx) TakeCertificateLock(ctx context.Context, l *CertificateLock, now int64) (bool, error) {
	_, err := t.db.NewDelete().Model((*CertificateLock)(nil)).Where("name = ?", l.Name).
		Where("holder = ? OR expires < ?", l.Holder, now).Exec(ctx)
	if err != nil {
		return false, err
	}
	res, err := t.db.NewInsert().Model(l).On("CONFLICT DO NOTHING").Exec(ctx)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// DeleteCertificateLock ends the lease of a holder, if it has it.
func (t *Tx) DeleteCertificateLock(ctx context.Context, name, holder string) error {
	_, err := t.db.NewDelete().Model((*CertificateLock)(nil)).Where("name = ?", name).Where("holder = ?", holder).
		Exec(ctx)
	return err
}
