package auth_test

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// local is the address that the tests call from.
var local = netip.MustParseAddr("127.0.0.1")

// program returns the principal of the program itself in a workspace.
func program(workspace api.Workspace) auth.Principal { return auth.Principal{Workspace: workspace} }

func open(t *testing.T) (*auth.Keys, *store.DB) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	k, err := auth.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return k, db
}

func TestFirstKey(t *testing.T) {
	k, db := open(t)
	token, err := k.CreateFirst(t.Context())
	if err != nil || !regexp.MustCompile(`^pds_[0-9a-f]{32}$`).MatchString(token) {
		t.Fatalf("CreateFirst = %q, %v; want a well-formed token", token, err)
	}
	if again, err := k.CreateFirst(t.Context()); err != nil || again != "" {
		t.Errorf("CreateFirst again = %q, %v; want no key", again, err)
	}
	p, err := k.Authenticate(t.Context(), token, local)
	if err != nil || p.Workspace != auth.DefaultWorkspace || !p.Admin || !p.Operator || p.KeyPrefix != token[:12] {
		t.Errorf("Authenticate = %+v, %v; want an admin of the default workspace", p, err)
	}
	rows, err := db.Read().Keys(t.Context(), "")
	if err != nil || len(rows) != 1 || strings.Contains(rows[0].Hash, token[12:]) || len(rows[0].Hash) != 64 {
		t.Errorf("got rows %+v, %v; want one with only the hash of the token", rows, err)
	}
}

func TestAuthenticateRefuses(t *testing.T) {
	k, _ := open(t)
	token, err := k.CreateFirst(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flipped := token[:35] + map[bool]string{true: "1", false: "0"}[token[35] == '0']
	for name, bad := range map[string]string{"empty": "", "short": token[:35], "long": token + "0",
		"flipped": flipped, "upper": strings.ToUpper(token),
		"unknown": "pds_" + strings.Repeat("0", 32), "injection": "pds_' OR '1'='1' --aaaaaaaaaaaaaaaaaa"} {
		if _, err := k.Authenticate(t.Context(), bad, local); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("Authenticate with a token that is %s: got %v, want unauthenticated", name, err)
		}
	}
}

func TestKeyLifecycle(t *testing.T) {
	k, _ := open(t)
	ctx := t.Context()
	admin := program("w")
	if _, _, err := k.Issue(ctx, "w", "owner"); err != nil {
		t.Fatal(err)
	}
	key, token, err := k.Create(ctx, admin, auth.KeyRequest{Label: "ci"})
	if err != nil || key.Label != "ci" || key.Admin() || key.Prefix != token[:12] {
		t.Fatalf("Create = %+v, %v; want a member key", key, err)
	}
	member, err := k.Authenticate(ctx, token, local)
	if err != nil || member.Admin || member.Workspace != "w" {
		t.Fatalf("Authenticate = %+v, %v; want a member of w", member, err)
	}
	if _, _, err := k.Create(ctx, member, auth.KeyRequest{}); api.CodeOf(err) != api.Forbidden {
		t.Errorf("Create by a member: got %v, want forbidden", err)
	}
	if _, err := k.List(ctx, member); api.CodeOf(err) != api.Forbidden {
		t.Errorf("List by a member: got %v, want forbidden", err)
	}
	if err := k.Revoke(ctx, member, key.Prefix); api.CodeOf(err) != api.Forbidden {
		t.Errorf("Revoke by a member: got %v, want forbidden", err)
	}
	if err := k.Revoke(ctx, program("other"), key.Prefix); api.CodeOf(
		err,
	) != api.NotFound {
		t.Errorf("Revoke by another workspace: got %v, want not_found", err)
	}
	all, err := k.List(ctx, admin)
	if err != nil || len(all) != 2 || all[0].LastUsed.IsZero() || !all[1].LastUsed.IsZero() {
		t.Errorf("List = %+v, %v; want two keys, one of them with a last use", all, err)
	}
	if err := k.Revoke(ctx, admin, key.Prefix); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Authenticate(ctx, token, local); api.CodeOf(err) != api.Unauthenticated {
		t.Errorf("Authenticate with a revoked key: got %v, want unauthenticated", err)
	}
}

func TestKeyExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, db := open(t)
		_, token, err := k.Create(
			t.Context(),
			program("w"),
			auth.KeyRequest{Expires: time.Now().Add(time.Hour)},
		)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Authenticate(t.Context(), token, local); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if _, err := k.Authenticate(t.Context(), token, local); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("Authenticate with an expired key: got %v, want unauthenticated", err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestRevokeRaces revokes keys during concurrent calls: a key is never valid after Revoke has returned.
func TestRevokeRaces(t *testing.T) {
	k, _ := open(t)
	ctx := t.Context()
	admin := program("w")
	for range 10 {
		key, token, err := k.Create(ctx, admin, auth.KeyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 5 {
					_, err := k.Authenticate(ctx, token, local)
					if err != nil && api.CodeOf(err) != api.Unauthenticated {
						t.Error(err)
					}
				}
			})
		}
		if err := k.Revoke(ctx, admin, key.Prefix); err != nil {
			t.Error(err)
		}
		if _, err := k.Authenticate(ctx, token, local); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("Authenticate right after Revoke: got %v, want unauthenticated", err)
		}
		wg.Wait()
		if _, err := k.Authenticate(ctx, token, local); api.CodeOf(err) != api.Unauthenticated {
			t.Errorf("Authenticate after concurrent calls: got %v, want unauthenticated", err)
		}
	}
}
