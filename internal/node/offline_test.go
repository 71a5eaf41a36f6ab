package node_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/config"
	"github.com/pandastack/pandastack/internal/node"
)

var discard = slog.New(slog.DiscardHandler)

// TestCreateKeyBesideANode makes a key in a data directory whose database another process has open.
func TestCreateKeyBesideANode(t *testing.T) {
	dir := t.TempDir()
	cfg := config.Default()
	cfg.DataDir = dir
	request := auth.KeyRequest{Role: api.RoleOwner, Operator: true}
	if _, _, err := node.CreateKey(t.Context(), &cfg, request); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in an empty directory: %v, want an error that says so", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the refused call left %v", left)
	}
	// A node has run here and still runs.
	if err := os.WriteFile(filepath.Join(dir, "secret"), bytes.Repeat([]byte{7}, 32), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := node.CreateKey(t.Context(), &cfg, request); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a database: %v, want an error that says so", err)
	}
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(dir, "control.db"), Key: node.StoreKey(dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	keys, err := auth.New(db, discard)
	if err != nil {
		t.Fatal(err)
	}
	made, token, err := node.CreateKey(t.Context(), &cfg, request)
	if err != nil {
		t.Fatal(err)
	}
	p, err := keys.Authenticate(t.Context(), token, netip.IPv6Loopback())
	if err != nil || !p.Operator || p.Role != api.RoleOwner || p.Workspace != auth.DefaultWorkspace {
		t.Errorf("Authenticate = %+v, %v; want an owner who is an operator", p, err)
	}
	log, err := audit.New(audit.Config{}, db, discard)
	if err != nil {
		t.Fatal(err)
	}
	all, err := log.List(t.Context(), p, audit.Query{})
	if err != nil || len(all) != 1 || all[0].Target != made.Prefix || all[0].Principal.KeyPrefix != "host" {
		t.Errorf("the audit log has %+v, %v; want the new key", all, err)
	}
	if _, _, err := node.CreateKey(t.Context(), &cfg, auth.KeyRequest{Role: "king"}); api.CodeOf(err) != api.Invalid {
		t.Errorf("an invalid role: %v", err)
	}
}

// TestSavedKey checks that the file of the command line gets the key, and stays closed to other users.
func TestSavedKey(t *testing.T) {
	dir := t.TempDir()
	path := config.NodeFile(dir)
	if err := os.WriteFile(path, []byte(`{"api_url":"http://127.0.0.1:1","api_key":"old"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := node.SaveKey(dir, "new"); err != nil {
		t.Fatal(err)
	}
	var access config.NodeAccess
	data, err := os.ReadFile(path)
	if err := errors.Join(err, json.Unmarshal(data, &access)); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 || access.APIKey != "new" || access.APIURL != "http://127.0.0.1:1" {
		t.Errorf("%s has mode %v, %v and %s; want 0600 and the new key", path, info.Mode(), err, data)
	}
}
