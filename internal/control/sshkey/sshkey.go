// Package sshkey keeps the public keys with which people use sandboxes over SSH.
//
// An SSH key stands for the API key that added it: it has the same rights, may be used from the same networks, and ends
// with it. The package knows which API keys a public key stands for; whether they are valid, and what they allow, is
// decided by package auth. It must not know the SSH protocol.
//
// All methods may be called concurrently.
package sshkey

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

const (
	maxPerWorkspace = 200
	// maxCandidates bounds the workspaces in which one public key is found.
	maxCandidates = 64
	minRSA        = 2048 // bits
	useResolution = time.Minute
)

// Keys keeps SSH keys. Make it with New.
type Keys struct{ db *store.DB }

// New returns Keys over a store. It does not touch the store.
func New(db *store.DB) (*Keys, error) {
	if db == nil {
		return nil, errors.New("sshkey: a store is required")
	}
	return &Keys{db: db}, nil
}

// Credential is what a public key stands for in one workspace.
type Credential struct {
	ID        api.SSHKeyID
	Workspace api.Workspace
	KeyPrefix string // of the API key whose rights it has
}

// Parse reads a public key from the line of a file such as id_ed25519.pub.
func Parse(text string) (key ssh.PublicKey, comment string, err error) {
	invalid := func(why string) error {
		return api.Errorf(api.Invalid, "public_key: %s: send the line of a file such as ~/.ssh/id_ed25519.pub", why).
			With("field", "public_key")
	}
	if strings.Contains(text, "PRIVATE KEY") {
		return nil, "", invalid("this is a private key, which must stay with its owner")
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey([]byte(text))
	switch {
	case err != nil:
		return nil, "", invalid("is not a public key of OpenSSH")
	case len(options) > 0:
		return nil, "", invalid("options before the key are not supported")
	case strings.TrimSpace(string(rest)) != "":
		return nil, "", invalid("is more than one line")
	}
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519,
		ssh.KeyAlgoSKECDSA256:
	case ssh.KeyAlgoRSA:
		if bits := rsaBits(key); bits < minRSA {
			return nil, "", invalid("RSA keys need 2048 bits or more")
		}
	default:
		return nil, "", invalid("keys of this type are not supported; use ed25519, ecdsa or rsa")
	}
	return key, comment, nil
}

// Add adds a public key with the rights of the caller's API key.
func (k *Keys) Add(ctx context.Context, p auth.Principal, req api.AddSSHKeyRequest) (api.SSHKey, error) {
	if err := req.Validate(); err != nil {
		return api.SSHKey{}, err
	}
	key, comment, err := Parse(req.PublicKey)
	if err != nil {
		return api.SSHKey{}, err
	}
	if p.KeyPrefix == "" {
		return api.SSHKey{}, api.Errorf(api.Forbidden, "only a caller with an API key can add an SSH key")
	}
	if req.Label == "" {
		req.Label = comment
		if (&api.AddSSHKeyRequest{PublicKey: "x", Label: comment}).Validate() != nil {
			req.Label = ""
		}
	}
	row := &store.SSHKey{
		ID: string(api.NewSSHKeyID()), Workspace: string(p.Workspace), Fingerprint: ssh.FingerprintSHA256(key),
		Public: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), Label: req.Label, Key: p.KeyPrefix,
		Created: store.Micros(time.Now()),
	}
	err = k.db.Write(ctx, "add SSH key", func(ctx context.Context, tx *store.Tx) error {
		all, err := tx.SSHKeys(ctx, row.Workspace)
		if err != nil {
			return err
		}
		for _, one := range all {
			if one.Fingerprint == row.Fingerprint {
				return api.Errorf(api.Conflict, "public_key: the workspace has this key already, as %s: delete that "+
					"first to give it the rights of another API key", one.ID).With("field", "public_key")
			}
		}
		if len(all) >= maxPerWorkspace {
			return api.Errorf(api.QuotaExceeded, "the workspace has %d SSH keys: delete some first", len(all))
		}
		return tx.InsertSSHKey(ctx, row)
	})
	if err != nil {
		return api.SSHKey{}, api.AsError(err)
	}
	return view(*row), nil
}

// List returns the keys of the caller's workspace, newest first.
func (k *Keys) List(ctx context.Context, p auth.Principal) ([]api.SSHKey, error) {
	rows, err := k.db.Read().SSHKeys(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.SSHKey, 0, len(rows))
	for _, r := range rows {
		out = append(out, view(r))
	}
	return out, nil
}

// Delete removes a key. That of another API key may be removed by who manages keys.
//
// Connections that use it end soon.
func (k *Keys) Delete(ctx context.Context, p auth.Principal, id api.SSHKeyID) error {
	err := k.db.Write(ctx, "delete SSH key", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.SSHKey(ctx, string(id))
		if errors.Is(err, store.ErrNotFound) || err == nil && row.Workspace != string(p.Workspace) {
			return api.Errorf(api.NotFound, "SSH key %s not found: list yours at /v1/ssh-keys", id)
		}
		if err != nil {
			return err
		}
		if row.Key != p.KeyPrefix && !p.Scopes.Has(api.ScopeKeys) {
			return api.Errorf(api.Forbidden, "SSH key %s was added by the API key %s: deleting it needs that one, or "+
				"the scope %s", id, row.Key, api.ScopeKeys)
		}
		return tx.DeleteSSHKey(ctx, row.Workspace, row.ID)
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// Find returns what a public key stands for: one credential for each workspace that has the key.
func (k *Keys) Find(ctx context.Context, key ssh.PublicKey) ([]Credential, error) {
	rows, err := k.db.Read().SSHKeysOf(ctx, ssh.FingerprintSHA256(key), maxCandidates)
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]Credential, 0, len(rows))
	for _, r := range rows {
		out = append(out, Credential{api.SSHKeyID(r.ID), api.Workspace(r.Workspace), r.Key})
	}
	return out, nil
}

// Current returns a credential as it is now. The error of one that was deleted is not_found.
func (k *Keys) Current(ctx context.Context, id api.SSHKeyID) (Credential, error) {
	row, err := k.db.Read().SSHKey(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) {
		return Credential{}, api.Errorf(api.NotFound, "SSH key %s was deleted", id)
	}
	if err != nil {
		return Credential{}, api.AsError(err)
	}
	return Credential{api.SSHKeyID(row.ID), api.Workspace(row.Workspace), row.Key}, nil
}

// Used notes that a key was used just now.
func (k *Keys) Used(ctx context.Context, id api.SSHKeyID) error {
	now := store.Micros(time.Now())
	row, err := k.db.Read().SSHKey(ctx, string(id))
	if err != nil || now-row.Used < useResolution.Microseconds() {
		return err
	}
	return k.db.Write(ctx, "use SSH key", func(ctx context.Context, tx *store.Tx) error {
		return tx.TouchSSHKey(ctx, string(id), now)
	})
}

func view(r store.SSHKey) api.SSHKey {
	out := api.SSHKey{
		ID: api.SSHKeyID(r.ID), Label: r.Label, Fingerprint: r.Fingerprint, PublicKey: r.Public, KeyPrefix: r.Key,
		CreatedAt: store.Time(r.Created),
	}
	if r.Used > 0 {
		at := store.Time(r.Used)
		out.LastUsedAt = &at
	}
	return out
}
