package sshkey_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sshkey"
	"github.com/pandastack/pandastack/internal/control/store"
)

// line returns the line of a file with a public key.
func line(t *testing.T, public any) string {
	t.Helper()
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func ed(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return line(t, public)
}

func TestParse(t *testing.T) {
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	short := rsa.PublicKey{N: long.N, E: long.E}
	short.N = short.N.Rsh(short.N, 1024)
	for name, tt := range map[string]struct {
		text string
		want string // of the error; "": none
	}{
		"ed25519":     {ed(t) + " me@laptop\n", ""},
		"ecdsa":       {line(t, curve.Public()), ""},
		"rsa":         {"# comment\n" + ed(t), ""},
		"empty":       {"\n", "is not a public key"},
		"private":     {"-----BEGIN OPENSSH PRIVATE KEY-----\n", "private key"},
		"options":     {"command=\"id\" " + ed(t), "options"},
		"two":         {ed(t) + "\n" + ed(t) + "\n", "more than one line"},
		"unknown":     {"ssh-dss AAAA", "is not a public key"},
		"cut off":     {ed(t)[:40], "is not a public key"},
		"short RSA":   {line(t, &short), "2048"},
		"certificate": {"ssh-ed25519-cert-v01@openssh.com AAAA", "is not a public key"},
	} {
		_, _, err := sshkey.Parse(tt.text)
		if (err == nil) != (tt.want == "") || err != nil && (api.CodeOf(err) != api.Invalid ||
			!strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: Parse() = %v, want %q", name, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl a comment")
	f.Fuzz(func(t *testing.T, text string) {
		key, _, err := sshkey.Parse(text)
		if err == nil && key == nil || err != nil && api.CodeOf(err) != api.Invalid {
			t.Errorf("Parse(%q) = %v, %v", text, key, err)
		}
	})
}

func TestKeys(t *testing.T) {
	ctx := t.Context()
	db, err := store.Open(ctx, store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	k, err := sshkey.New(db)
	if err != nil {
		t.Fatal(err)
	}
	one := auth.Principal{Workspace: "w", KeyPrefix: "pds_1"}
	two := auth.Principal{Workspace: "w", KeyPrefix: "pds_2"}
	admin := auth.Principal{Workspace: "w", KeyPrefix: "pds_3", Scopes: auth.NewScopes(api.ScopeKeys)}
	other := auth.Principal{Workspace: "other", KeyPrefix: "pds_4", Scopes: auth.NewScopes(api.ScopeKeys)}
	text := ed(t)
	key, err := k.Add(ctx, one, api.AddSSHKeyRequest{PublicKey: text + " me@laptop"})
	if err != nil || key.Label != "me@laptop" || key.KeyPrefix != "pds_1" || key.PublicKey != text {
		t.Fatalf("Add() = %+v, %v", key, err)
	}
	if _, err := k.Add(ctx, two, api.AddSSHKeyRequest{PublicKey: text}); api.CodeOf(err) != api.Conflict {
		t.Errorf("adding a key twice: %v, want conflict", err)
	}
	if _, err := k.Add(ctx, other, api.AddSSHKeyRequest{PublicKey: text}); err != nil {
		t.Errorf("adding it to another workspace: %v", err)
	}
	if _, err := k.Add(ctx, auth.Principal{Workspace: "w"}, api.AddSSHKeyRequest{PublicKey: ed(t)}); err == nil {
		t.Error("a caller without an API key added a key")
	}
	parsed, _, err := sshkey.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := k.Find(ctx, parsed); err != nil || len(found) != 2 {
		t.Errorf("Find() = %v, %v, want one of each workspace", found, err)
	}
	for _, tt := range []struct {
		p    auth.Principal
		want api.Code
	}{{other, api.NotFound}, {two, api.Forbidden}, {admin, ""}, {one, api.NotFound}} {
		if err := k.Delete(ctx, tt.p, key.ID); api.CodeOf(err) != tt.want {
			t.Errorf("Delete() of %s = %v, want %q", tt.p.KeyPrefix, err, tt.want)
		}
	}
	if _, err := k.Current(ctx, key.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("Current() of a key that was deleted = %v", err)
	}
	for range 200 {
		if _, err = k.Add(ctx, one, api.AddSSHKeyRequest{PublicKey: ed(t)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err = k.Add(ctx, one, api.AddSSHKeyRequest{PublicKey: ed(t)}); api.CodeOf(err) != api.QuotaExceeded {
		t.Errorf("adding one more key: %v, want quota_exceeded", err)
	}
}
