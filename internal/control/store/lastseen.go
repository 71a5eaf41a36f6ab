package store

import (
	"context"

	"github.com/uptrace/bun"
)

// LastSeen is what was last seen of a living sandbox, for the time when it can no longer be asked.
//
// It is part of the sandbox's row, no other write of the row changes it, and it is deleted with the row.
type LastSeen struct {
	bun.BaseModel `bun:"table:sandboxes"`
	ID            string `bun:"id,pk"`
	Processes     string `bun:"last_processes"` // JSON, "" for none
	Console       string `bun:"last_console"`   // valid UTF-8 without zero bytes
	Usage         string `bun:"last_usage"`     // JSON, "" for none
}

// PutLastSeen writes what was seen. An empty console or usage stays as it is; missing sandboxes are skipped.
func (t *Tx) PutLastSeen(ctx context.Context, all []LastSeen) error {
	for _, seen := range all {
		q := t.db.NewUpdate().Model((*LastSeen)(nil)).Set("last_processes = ?", seen.Processes).Where("id = ?", seen.ID)
		if seen.Console != "" {
			q = q.Set("last_console = ?", seen.Console)
		}
		if seen.Usage != "" {
			q = q.Set("last_usage = ?", seen.Usage)
		}
		if _, err := q.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// LastSeen reads what was last seen of one sandbox; ErrNotFound if it does not live.
func (t *Tx) LastSeen(ctx context.Context, id string) (LastSeen, error) {
	seen := LastSeen{ID: id}
	err := t.db.NewSelect().Model(&seen).WherePK().Scan(ctx)
	return seen, notFound(err, "sandbox", id)
}

// LastProcesses reads only the processes, of all sandboxes that had some.
func (t *Tx) LastProcesses(ctx context.Context) ([]LastSeen, error) {
	var rows []LastSeen
	err := t.db.NewSelect().Model(&rows).Column("id", "last_processes").Where("last_processes <> ''").Scan(ctx)
	return rows, err
}
