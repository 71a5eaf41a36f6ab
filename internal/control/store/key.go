package store

import (
	"context"

	"github.com/uptrace/bun"
)

// Key is a row of keys: an API key without what is secret in it.
type Key struct {
	bun.BaseModel `bun:"table:keys"`
	Prefix        string `bun:"prefix,pk"`
	Workspace     string `bun:"workspace"`
	Hash          string `bun:"hash"` // SHA-256 of the key, hexadecimal
	Label         string `bun:"label"`
	Role          string `bun:"role"`
	Operator      bool   `bun:"operator"` // may operate the node
	Scopes        string `bun:"scopes"`   // separated by spaces; "": all of the role
	Networks      string `bun:"networks"` // that it may be used from, separated by spaces; "": all
	Created       int64  `bun:"created"`
	LastUsed      int64  `bun:"last_used"`
	Expires       int64  `bun:"expires"`
	ReplacedBy    string `bun:"replaced_by"` // prefix of the key that it was rotated to
}

// InsertKey adds a row; ErrExists if the prefix is taken.
func (t *Tx) InsertKey(ctx context.Context, k *Key) error {
	_, err := t.db.NewInsert().Model(k).Exec(ctx)
	return exists(err, "key", k.Prefix)
}

// Key reads one row.
func (t *Tx) Key(ctx context.Context, prefix string) (Key, error) {
	k := Key{Prefix: prefix}
	err := t.db.NewSelect().Model(&k).WherePK().Scan(ctx)
	return k, notFound(err, "key", prefix)
}

// Keys reads the rows of a workspace, newest first; "" is all workspaces.
func (t *Tx) Keys(ctx context.Context, workspace string) ([]Key, error) {
	var rows []Key
	q := t.db.NewSelect().Model(&rows).OrderBy("created", bun.OrderDesc).OrderBy("prefix", bun.OrderAsc)
	if workspace != "" {
		q = q.Where("workspace = ?", workspace)
	}
	return rows, q.Scan(ctx)
}

// DeleteKey removes a key of a workspace; ErrNotFound if there is none.
func (t *Tx) DeleteKey(ctx context.Context, workspace, prefix string) error {
	res, err := t.db.NewDelete().
		Model((*Key)(nil)).
		Where("prefix = ?", prefix).
		Where("workspace = ?", workspace).
		Exec(ctx)
	return changed(res, err, "key", prefix)
}

// ReplaceKey writes the end of a key that was rotated to another one.
func (t *Tx) ReplaceKey(ctx context.Context, prefix, by string, expires int64) error {
	res, err := t.db.NewUpdate().Model((*Key)(nil)).Set("replaced_by = ?", by).Set("expires = ?", expires).
		Where("prefix = ?", prefix).Exec(ctx)
	return changed(res, err, "key", prefix)
}

// TouchKeys writes when keys were used last, by prefix. Missing keys are skipped.
func (t *Tx) TouchKeys(ctx context.Context, used map[string]int64) error {
	for prefix, at := range used {
		_, err := t.db.NewUpdate().Model((*Key)(nil)).Set("last_used = ?", at).
			Where("prefix = ?", prefix).Where("last_used < ?", at).Exec(ctx)
		if err != nil {
			return err
		}
	}
	return nil
}
