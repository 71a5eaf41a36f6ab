package auth_test

import (
	"context"
	"database/sql"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// issue makes a key as the program and returns it with its principal.
func issue(t *testing.T, k *auth.Keys, workspace api.Workspace, req auth.KeyRequest) (auth.Key, auth.Principal) {
	t.Helper()
	key, token, err := k.Create(t.Context(), program(workspace), req)
	if err != nil {
		t.Fatal(err)
	}
	from := local
	if len(req.CIDRs) > 0 {
		from = netip.MustParsePrefix(req.CIDRs[0]).Addr()
	}
	p, err := k.Authenticate(t.Context(), token, from)
	if err != nil {
		t.Fatal(err)
	}
	return key, p
}

// TestNobodyGivesMoreThanTheyHave checks that a key can make only keys with its own rights or fewer.
func TestNobodyGivesMoreThanTheyHave(t *testing.T) {
	k, _ := open(t)
	_, owner := issue(t, k, "w", auth.KeyRequest{Role: api.RoleOwner})
	_, admin := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin})
	_, developer := issue(t, k, "w", auth.KeyRequest{})
	_, viewer := issue(t, k, "w", auth.KeyRequest{Role: api.RoleViewer})
	_, few := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin, Scopes: []api.Scope{api.ScopeKeys, api.ScopeRead}})
	_, near := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin, CIDRs: []string{"192.0.2.0/24"}})
	_, operator := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin, Operator: true})
	for name, tt := range map[string]struct {
		who   auth.Principal
		req   auth.KeyRequest
		field string // refused; "": allowed
	}{
		"owner makes owner":              {owner, auth.KeyRequest{Role: api.RoleOwner}, ""},
		"owner makes operator":           {owner, auth.KeyRequest{Operator: true}, "operator"},
		"owner in another workspace":     {owner, auth.KeyRequest{Workspace: "x"}, "workspace"},
		"admin makes owner":              {admin, auth.KeyRequest{Role: api.RoleOwner}, "role"},
		"admin makes admin":              {admin, auth.KeyRequest{Role: api.RoleAdmin}, ""},
		"admin makes viewer":             {admin, auth.KeyRequest{Role: api.RoleViewer}, ""},
		"developer makes viewer":         {developer, auth.KeyRequest{Role: api.RoleViewer}, "-"},
		"viewer makes viewer":            {viewer, auth.KeyRequest{Role: api.RoleViewer}, "-"},
		"few makes developer":            {few, auth.KeyRequest{}, "scopes"},
		"few makes reader":               {few, auth.KeyRequest{Scopes: []api.Scope{api.ScopeRead}}, ""},
		"near makes far":                 {near, auth.KeyRequest{}, "cidrs"},
		"near makes wide":                {near, auth.KeyRequest{CIDRs: []string{"192.0.0.0/16"}}, "cidrs"},
		"near makes near":                {near, auth.KeyRequest{CIDRs: []string{"192.0.2.7"}}, ""},
		"operator makes owner elsewhere": {operator, auth.KeyRequest{Workspace: "y", Role: api.RoleOwner}, ""},
		"operator makes operator":        {operator, auth.KeyRequest{Operator: true}, ""},
		"a scope above the role": {owner, auth.KeyRequest{Role: api.RoleViewer, Scopes: []api.Scope{api.ScopeExec}},
			"scopes"},
		"no scope":   {owner, auth.KeyRequest{Scopes: []api.Scope{"all"}}, "scopes"},
		"no role":    {owner, auth.KeyRequest{Role: "king"}, "role"},
		"no network": {owner, auth.KeyRequest{CIDRs: []string{"192.0.2.0/33"}}, "cidrs"},
		"a zone":     {owner, auth.KeyRequest{CIDRs: []string{"fe80::1%eth0"}}, "cidrs"},
		"the past":   {owner, auth.KeyRequest{Expires: time.Now().Add(-time.Second)}, "expires_at"},
	} {
		_, token, err := k.Create(t.Context(), tt.who, tt.req)
		if (err == nil) != (tt.field == "") || (err == nil) != (token != "") {
			t.Errorf("%s: got %v", name, err)
		} else if field := ""; err != nil {
			field, _ = api.AsError(err).Details["field"].(string)
			if tt.field != "-" && field != tt.field || tt.field == "-" && api.CodeOf(err) != api.Forbidden {
				t.Errorf("%s: refused with %v, field %q; want %q", name, err, field, tt.field)
			}
		}
	}
}

// TestWhoMayRevoke checks that a key of fewer rights cannot end one of more.
func TestWhoMayRevoke(t *testing.T) {
	k, _ := open(t)
	top, owner := issue(t, k, "w", auth.KeyRequest{Role: api.RoleOwner})
	_, admin := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin})
	node, operator := issue(t, k, "w", auth.KeyRequest{Operator: true, Role: api.RoleAdmin})
	issue(t, k, "w", auth.KeyRequest{Operator: true})
	for name, tt := range map[string]struct {
		who    auth.Principal
		prefix string
		want   api.Code
	}{
		"admin an owner":    {admin, top.Prefix, api.Forbidden},
		"admin an operator": {admin, node.Prefix, api.Forbidden},
		"owner an operator": {owner, node.Prefix, api.Forbidden},
		"nothing":           {owner, "pds_00000000", api.NotFound},
		"operator itself":   {operator, node.Prefix, ""},
	} {
		if _, _, _, err := k.Rotate(t.Context(), tt.who, tt.prefix, 0); tt.want != "" && api.CodeOf(err) != tt.want {
			t.Errorf("rotate, %s: got %v, want %s", name, err, tt.want)
		}
		if err := k.Revoke(t.Context(), tt.who, tt.prefix); tt.want != "" && api.CodeOf(err) != tt.want {
			t.Errorf("revoke, %s: got %v, want %s", name, err, tt.want)
		}
	}
}

// TestLastKeyStays checks that the last key that manages a workspace or the node cannot be revoked.
func TestLastKeyStays(t *testing.T) {
	k, _ := open(t)
	ctx := t.Context()
	first, err := k.CreateFirst(ctx)
	if err != nil {
		t.Fatal(err)
	}
	p, err := k.Authenticate(ctx, first, local)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string) {
		t.Helper()
		if err := k.Revoke(ctx, p, p.KeyPrefix); api.CodeOf(err) != api.Conflict {
			t.Fatalf("revoke the only key, with %s: got %v, want conflict", what, err)
		}
	}
	refused("nothing else")
	for what, req := range map[string]auth.KeyRequest{
		"a developer":                   {},
		"a viewer":                      {Role: api.RoleViewer},
		"an admin without keys":         {Role: api.RoleAdmin, Scopes: []api.Scope{api.ScopeRead}, Operator: true},
		"an operator that ends earlier": {Role: api.RoleOwner, Operator: true, Expires: time.Now().Add(time.Hour)},
		"an owner":                      {Role: api.RoleOwner}, // but no operator
	} {
		if _, _, err := k.Create(ctx, p, req); err != nil {
			t.Fatal(err)
		}
		refused(what)
	}
	if _, _, err := k.Create(ctx, p, auth.KeyRequest{Role: api.RoleOwner, Operator: true}); err != nil {
		t.Fatal(err)
	}
	if err := k.Revoke(ctx, p, p.KeyPrefix); err != nil {
		t.Errorf("revoke with another owner who operates the node: %v", err)
	}
	if _, err := k.List(ctx, p); api.CodeOf(err) != api.Unauthenticated {
		t.Errorf("list with a revoked key: %v, want unauthenticated", err)
	}
}

func TestRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, db := open(t)
		ctx := t.Context()
		_, admin := issue(t, k, "w", auth.KeyRequest{Role: api.RoleAdmin})
		old, oldToken, err := k.Create(ctx, admin, auth.KeyRequest{
			Label: "ci", Scopes: []api.Scope{api.ScopeRead, api.ScopeExec}, CIDRs: []string{"127.0.0.0/8"},
			Expires: time.Now().Add(48 * time.Hour),
		})
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(24 * time.Hour)
		next, token, until, err := k.Rotate(ctx, admin, old.Prefix, time.Hour)
		if err != nil || next.Label != "ci" || len(next.Scopes) != 2 || len(next.CIDRs) != 1 ||
			time.Until(next.Expires).Round(time.Minute) != 48*time.Hour ||
			time.Until(until).Round(time.Minute) != time.Hour {
			t.Fatalf("Rotate = %+v until %v, %v; want the rights and the lifetime of the old key", next, until, err)
		}
		works := func(token string, want bool) {
			t.Helper()
			if _, err := k.Authenticate(ctx, token, local); (err == nil) != want {
				t.Errorf("Authenticate with %s: %v, want it to work: %v", token[:12], err, want)
			}
		}
		works(oldToken, true)
		works(token, true)
		if _, _, _, err := k.Rotate(ctx, admin, old.Prefix, 0); api.CodeOf(err) != api.Conflict {
			t.Errorf("rotated twice: %v, want conflict", err)
		}
		<-time.After(time.Hour)
		works(oldToken, false)
		works(token, true)
		_, last, _, err := k.Rotate(ctx, admin, next.Prefix, 0)
		if err != nil {
			t.Fatal(err)
		}
		works(token, false)
		works(last, true)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestNetworksOfKeys(t *testing.T) {
	k, _ := open(t)
	req := auth.KeyRequest{CIDRs: []string{"192.0.2.0/24", "2001:db8::/32", "198.51.100.7"}}
	_, token, err := k.Create(t.Context(), program("w"), req)
	if err != nil {
		t.Fatal(err)
	}
	for from, ok := range map[string]bool{
		"192.0.2.255": true, "192.0.3.0": false, "::ffff:192.0.2.1": true, "2001:db8::1": true, "2001:db9::1": false,
		"198.51.100.7": true, "198.51.100.8": false, "": false,
	} {
		a, _ := netip.ParseAddr(from) // "" is an address that is not known
		_, err := k.Authenticate(t.Context(), token, a)
		if (err == nil) != ok || err != nil && api.CodeOf(err) != api.Forbidden {
			t.Errorf("from %q: %v, want it to work: %v", from, err, ok)
		}
	}
}

// TestLastUseIsWrittenLazily checks that calls write nothing, and that Run writes the last use of each key.
func TestLastUseIsWrittenLazily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var writes atomic.Int32
		db, err := store.Open(t.Context(), store.Config{
			DSN: filepath.Join(t.TempDir(), "c.db"),
			Fault: func(op string, committed bool) error {
				if op == "use keys" && committed {
					writes.Add(1)
				}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		k, err := auth.New(db, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		_, token, err := k.Create(ctx, program("w"), auth.KeyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			if _, err := k.Authenticate(ctx, token, local); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		if n := writes.Load(); n != 3 {
			t.Errorf("200 uses in 200 s made %d writes, want 3", n)
		}
		if _, err := k.Authenticate(ctx, token, local); err != nil {
			t.Fatal(err)
		}
		used := time.Now()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		row, err := db.Read().Key(t.Context(), token[:12])
		if err != nil || row.LastUsed != store.Micros(used) {
			t.Errorf("last use %v, %v; want %v", store.Time(row.LastUsed), err, used)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestKeysOfAnEarlierRelease checks what the keys of a store of an earlier release may do.
func TestKeysOfAnEarlierRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.db")
	makeOld(t, path)
	db, err := store.Open(t.Context(), store.Config{DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	k, err := auth.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	all, err := k.List(t.Context(), program("w"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v; want two keys", all, err)
	}
	for _, key := range all {
		admin := key.Prefix == "pds_aaaaaaaa"
		want := map[bool]api.Role{true: api.RoleOwner, false: api.RoleDeveloper}[admin]
		if key.Role != want || key.Operator != admin || key.Admin() != admin ||
			len(key.Scopes) != len(want.Scopes(admin)) {
			t.Errorf("key %+v, want role %s, operator %v", key, want, admin)
		}
	}
}

// makeOld makes a store of schema version 10 with an admin's key and a member's.
func makeOld(t *testing.T, path string) {
	t.Helper()
	raw, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	migrations, err := goose.NewProvider(goose.DialectSQLite3, raw, os.DirFS("../store/migrations"),
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrations.UpTo(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	for _, q := range []string{
		"INSERT INTO workspaces (id, name, created, max_sandboxes) VALUES ('w', 'w', 1, 0)",
		"INSERT INTO keys VALUES ('pds_aaaaaaaa', 'w', 'aa', '', 'admin', 1, 0, 0)",
		"INSERT INTO keys VALUES ('pds_bbbbbbbb', 'w', 'bb', '', 'member', 1, 0, 0)",
	} {
		if _, err := raw.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}
