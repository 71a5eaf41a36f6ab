package store

import (
	"context"

	"github.com/uptrace/bun"
)

// LastSeen is what was seen last of a living sandbox, for when it can be asked no more. It lies in the row of the
// sandbox, which no other write of that row touches, and goes with it.
type LastSeen struct {
	bun.BaseModel `bun:"table:sandboxes"`
	ID            string `bun:"id,pk"`
	Processes     string `bun:"last_processes"` // JSON, "" for none
	Console       string `bun:"last_console"`   // valid UTF-8 without zero bytes
	Usage         string `bun:"last_usage"`     // JSON, "" for none
}

// PutLastSeen writes what was seen; of console and usage what is "" stays as it is. A sandbox that is not there is passed
// over.
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

// LastSeen reads what was seen of one sandbox; ErrNotFound if it does not live.
func (t *Tx) LastSeen(ctx context.Context, id string) (LastSeen, error) {
	seen := LastSeen{ID: id}
	err := t.db.NewSelect().Model(&seen).WherePK().Scan(ctx)
	return seen, notFound(err, "sandbox", id)
}

// LastProcesses reads what was seen of the processes of all sandboxes that had some, and nothing else.
func (t *Tx) LastProcesses(ctx context.Context) ([]LastSeen, error) {
	var rows []LastSeen
	err := t.db.NewSelect().Model(&rows).Column("id", "last_processes").Where("last_processes <> ''").Scan(ctx)
	return rows, err
}
