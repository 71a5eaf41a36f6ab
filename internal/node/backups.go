package node

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// rehearsals implements backup.Machines with the service for databases, which is made after the keeper.
type rehearsals struct{ *database.Service }

// backups creates the keeper of the backups of databases, and what it rehearses restores with. Without an object store
// the archive is in the data directory.
func (n *node) backups(ctx context.Context, db *store.DB) (*backup.Keeper, *rehearsals, error) {
	c, bucket := n.Config.ObjectStore, n.Store
	if bucket == nil {
		address := c.URL
		if address == "" {
			dir := n.path("databases/archive")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return nil, nil, fmt.Errorf("archive of databases: %w", err)
			}
			address = "file://" + dir
		}
		opened, err := blob.Open(ctx, address, blob.Options{Timeout: c.Timeout})
		if err != nil {
			return nil, nil, fmt.Errorf("archive of databases: %w", err)
		}
		n.undo.Push("close archive of databases", func(context.Context) error { return opened.Close() })
		bucket = opened
	}
	ring, err := keyring.Open(cmp.Or(c.Key, n.path("objects.key")))
	if err != nil {
		return nil, nil, fmt.Errorf("object_store.key: %w", err)
	}
	machines, set := &rehearsals{}, n.Config.Databases
	keeper, err := backup.New(backup.Config{
		Store: db, Blobs: bucket, Ring: ring, Dir: n.path("databases/spool"), Log: n.Log, Machines: machines,
		Retention: archive.Retention{
			Period: time.Duration(set.BackupDays) * 24 * time.Hour, Count: set.BaseBackups,
		},
		BaseInterval: set.BaseInterval, SpoolBytes: int64(set.SpoolMiB) << 20, RehearsalHour: set.RehearsalHour,
	})
	return keeper, machines, err
}
