package node

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/nodebackup"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// UseDataDir prepares a data directory, locks it as a node does, and calls do.
func UseDataDir(ctx context.Context, dir string, do func() error) (err error) {
	release, err := disk.EnsureDataDir(ctx, dir)
	if err != nil {
		return dataDirError(err, os.Geteuid())
	}
	defer func() { err = errors.Join(err, release(context.WithoutCancel(ctx))) }()
	held, err := lockDataDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	return do()
}

// backupRetry is the longest pause after a backup that failed.
const backupRetry = time.Hour

// makeBackups makes a backup of the node every backup.every, until ctx ends.
func (n *node) makeBackups(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		next, err := n.backupIfDue(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			n.Log.Error("no backup of the node was made", "err", err, "next", next)
		}
		timer.Reset(next)
	}
}

// backupIfDue makes a backup if the newest one of this node is old enough, and returns when to look again.
func (n *node) backupIfDue(ctx context.Context, now time.Time) (next time.Duration, err error) {
	set := n.Config.Backup
	retry := min(set.Every, backupRetry)
	at, err := nodebackup.Location(n.Config, "")
	if err != nil {
		return retry, err
	}
	passphrase, err := nodebackup.ReadPassphrase(set.PassphraseFile)
	if err != nil {
		return retry, err
	}
	objects, err := blob.Open(ctx, at, blob.Options{Timeout: n.Config.ObjectStore.Timeout})
	if err != nil {
		return retry, err
	}
	defer func() { err = errors.Join(err, objects.Close()) }()
	r, err := nodebackup.Open(ctx, objects, nodebackup.Options{Passphrase: passphrase, Create: true, Log: n.Log})
	if err != nil {
		return retry, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	all, err := r.List(ctx)
	if err != nil {
		return retry, err
	}
	host := nodebackup.Host(n.Config.DataDir)
	for _, b := range all {
		if due := b.Created.Add(set.Every).Sub(now); b.Host == host && due > 0 {
			return due, nil
		}
	}
	b, err := r.Create(ctx, nodebackup.Source{
		DataDir: n.Config.DataDir, Key: n.Config.ObjectStore.Key, Release: n.Version,
	})
	if err != nil {
		return retry, err
	}
	n.Log.Info("backup of the node made", "backup", b.ID, "files", b.Files, "bytes", b.Bytes, "stored", b.Stored,
		"took", time.Since(now))
	removed, err := r.Clean(ctx, host, set.Keep)
	if len(removed) > 0 {
		n.Log.Info("old backups of the node removed", "backups", removed)
	}
	return set.Every, err
}
