package store

import (
	"context"

	"github.com/uptrace/bun"
)

// SSHKey is a row of ssh_keys: a public key that stands for an API key. Times are microseconds.
type SSHKey struct {
	bun.BaseModel `bun:"table:ssh_keys"`
	ID            string `bun:"id,pk"`
	Workspace     string `bun:"workspace"`
	Fingerprint   string `bun:"fingerprint"`
	Public        string `bun:"public"`
	Label         string `bun:"label"`
	Key           string `bun:"key"`
	Created       int64  `bun:"created"`
	Used          int64  `bun:"used"` // 0: never
}

// InsertSSHKey adds a row; ErrExists if the id, or the fingerprint in the workspace, is taken.
func (t *Tx) InsertSSHKey(ctx context.Context, k *SSHKey) error {
	_, err := t.db.NewInsert().Model(k).Exec(ctx)
	return exists(err, "SSH key", k.Fingerprint)
}

// SSHKey reads one row.
func (t *Tx) SSHKey(ctx context.Context, id string) (SSHKey, error) {
	k := SSHKey{ID: id}
	err := t.db.NewSelect().Model(&k).WherePK().Scan(ctx)
	return k, notFound(err, "SSH key", id)
}

// SSHKeys reads the rows of a workspace, newest first.
func (t *Tx) SSHKeys(ctx context.Context, workspace string) ([]SSHKey, error) {
	rows := []SSHKey{}
	err := t.db.NewSelect().Model(&rows).Where("workspace = ?", workspace).
		OrderBy("created", bun.OrderDesc).OrderBy("id", bun.OrderAsc).Scan(ctx)
	return rows, err
}

// SSHKeysOf reads up to limit rows with a fingerprint, of all workspaces, oldest first.
func (t *Tx) SSHKeysOf(ctx context.Context, fingerprint string, limit int) ([]SSHKey, error) {
	rows := []SSHKey{}
	err := t.db.NewSelect().Model(&rows).Where("fingerprint = ?", fingerprint).
		OrderBy("created", bun.OrderAsc).OrderBy("id", bun.OrderAsc).Limit(int64(limit)).Scan(ctx)
	return rows, err
}

// TouchSSHKey writes when a key was used last.
func (t *Tx) TouchSSHKey(ctx context.Context, id string, at int64) error {
	_, err := t.db.NewUpdate().Model((*SSHKey)(nil)).Set("used = ?", at).Where("id = ?", id).Where("used < ?", at).
		Exec(ctx)
	return err
}

// DeleteSSHKey removes a key of a workspace; ErrNotFound if there is none.
func (t *Tx) DeleteSSHKey(ctx context.Context, workspace, id string) error {
	res, err := t.db.NewDelete().Model((*SSHKey)(nil)).Where("id = ?", id).Where("workspace = ?", workspace).Exec(ctx)
	return changed(res, err, "SSH key", id)
}

// MoveSSHKeys gives the SSH keys of an API key to another one.
func (t *Tx) MoveSSHKeys(ctx context.Context, from, to string) error {
	_, err := t.db.NewUpdate().Model((*SSHKey)(nil)).Set("key = ?", to).Where("key = ?", from).Exec(ctx)
	return err
}

// DeleteSSHKeysOf removes the SSH keys of an API key.
func (t *Tx) DeleteSSHKeysOf(ctx context.Context, key string) error {
	_, err := t.db.NewDelete().Model((*SSHKey)(nil)).Where("key = ?", key).Exec(ctx)
	return err
}
