package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

var discardLog = slog.New(slog.DiscardHandler)

// CreateKey makes a key in the database of a data directory, whether or not a node uses it.
//
// It is for root on the host, as the way back to a node of which all keys are lost: the caller needs the rights to read
// and write the files. The database must have the schema of this program, which a start of the node brings about. The
// audit log has the key as one that the host made.
func CreateKey(ctx context.Context, cfg *config.Node, req auth.KeyRequest) (key auth.Key, token string, err error) {
	n := &node{Options: Options{Config: cfg, Log: discardLog}}
	if _, err := os.Stat(n.path("secret")); err != nil {
		return key, "", fmt.Errorf("%s holds no data of a node (%w): name its directory with --data-dir; if it is on "+
			"an image that is not mounted, start the node first", cfg.DataDir, err)
	}
	secret, err := n.secret()
	if err != nil {
		return key, "", err
	}
	db, err := store.Open(ctx, store.Config{DSN: n.path("control.db"), Key: derive(secret, "store"), Current: true})
	if err != nil {
		return key, "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	keys, err := auth.New(db, discardLog)
	if err != nil {
		return key, "", err
	}
	log, err := audit.New(audit.Config{}, db, discardLog)
	if err != nil {
		return key, "", err
	}
	host := auth.Principal{Workspace: auth.DefaultWorkspace}
	if key, token, err = keys.Create(ctx, host, req); err != nil {
		return key, "", err
	}
	host.Workspace, host.KeyPrefix = key.Workspace, "host"
	log.Record(ctx, audit.Entry{
		Principal: host, Action: "key create", Target: key.Prefix, Outcome: "ok", Remote: "local",
	})
	return key, token, log.Flush(ctx)
}

// SaveKey keeps a key in the file from which the command line on this host takes its key. The address in it stays.
func SaveKey(dataDir, token string) error {
	dir, err := filepath.Abs(dataDir)
	if err != nil {
		return err
	}
	path := config.NodeFile(dir)
	access := config.NodeAccess{APIURL: config.DefaultURL}
	if err := durable.ReadJSON(path, &access); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	access.APIKey = token
	return durable.WriteJSON(path, access)
}
