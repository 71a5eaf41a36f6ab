package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Port is a row of ports: one that a user declared.
type Port struct {
	bun.BaseModel `bun:"table:ports"`
	Sandbox       string `bun:"sandbox,pk"`
	Port          int    `bun:"port,pk"`
	Label         string `bun:"label"`
	Created       int64  `bun:"created"`
}

// PutPort adds a port or changes its label.
func (t *Tx) PutPort(ctx context.Context, p *Port) error {
	_, err := t.db.NewInsert().Model(p).On("CONFLICT (sandbox, port) DO UPDATE").Set("label = EXCLUDED.label").Exec(ctx)
	return err
}

// Ports reads the ports of a sandbox by number.
func (t *Tx) Ports(ctx context.Context, sandbox string) ([]Port, error) {
	var rows []Port
	err := t.db.NewSelect().Model(&rows).Where("sandbox = ?", sandbox).OrderBy("port", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// DeletePort removes a port; ErrNotFound if there is none.
func (t *Tx) DeletePort(ctx context.Context, sandbox string, port int) error {
	res, err := t.db.NewDelete().Model((*Port)(nil)).Where("sandbox = ?", sandbox).Where("port = ?", port).Exec(ctx)
	return changed(res, err, "port of sandbox", sandbox)
}
