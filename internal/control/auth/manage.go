package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// KeyRequest describes a key to make.
type KeyRequest struct {
	Workspace api.Workspace // "": the caller's; an operator may name another one
	Label     string        // text for people, at most 128 bytes
	Role      api.Role      // "": developer
	Operator  bool          // the key may operate the node
	Scopes    []api.Scope   // of the role; none: all of them
	CIDRs     []string      // networks that it may be used from; none: all
	Expires   time.Time     // zero: never
}

// Key is a key without its token. Times that do not apply are zero.
type Key struct {
	Prefix                     string
	Workspace                  api.Workspace
	Label                      string
	Role                       api.Role
	Operator                   bool
	Scopes                     []api.Scope
	CIDRs                      []string
	Created, LastUsed, Expires time.Time
	ReplacedBy                 string // prefix of the key that it was rotated to
}

// Admin reports whether the key manages its workspace.
func (k Key) Admin() bool { return isAdmin(k.Role) }

// newToken returns a random token.
func newToken() string {
	var b [keyDigits / 2]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never returns an error since Go 1.24
	return keyPrefix + hex.EncodeToString(b[:])
}

// attempts is how many tokens create tries, because the prefix of a token, which has 32 bits, may be taken.
const attempts = 8

// create makes a key and its workspace. plan runs in the same transaction and returns the row without its secret part,
// or false for none. create tries another token if the prefix is taken.
func (k *Keys) create(
	ctx context.Context,
	plan func(context.Context, *store.Tx) (store.Key, bool, error),
	then func(ctx context.Context, tx *store.Tx, prefix string) error,
) (key Key, token string, err error) {
	for range attempts {
		err = k.db.Write(ctx, "create key", func(ctx context.Context, tx *store.Tx) error {
			key, token = Key{}, ""
			row, ok, err := plan(ctx, tx)
			if err != nil || !ok {
				return err
			}
			secret := newToken()
			hash := sha256.Sum256([]byte(secret))
			row.Prefix, row.Hash = secret[:prefixLen], hex.EncodeToString(hash[:])
			row.Created = store.Micros(time.Now())
			w := &store.Workspace{ID: row.Workspace, Name: row.Workspace, Created: row.Created}
			if err := tx.PutWorkspace(ctx, w); err != nil {
				return err
			}
			if err := tx.InsertKey(ctx, &row); err != nil {
				return err
			}
			if then != nil {
				if err := then(ctx, tx, row.Prefix); err != nil {
					return err
				}
			}
			key, token = k.view(row), secret
			return nil
		})
		if !errors.Is(err, store.ErrExists) {
			break
		}
	}
	if err != nil {
		return Key{}, "", api.AsError(err)
	}
	return key, token, nil
}

// CreateFirst makes the first key, of an owner and operator, in the default workspace.
//
// It returns the token, and "" if the store has a key already. A token cannot be read again later.
func (k *Keys) CreateFirst(ctx context.Context) (token string, err error) {
	_, token, err = k.create(ctx, func(ctx context.Context, tx *store.Tx) (store.Key, bool, error) {
		all, err := tx.Keys(ctx, "")
		row := store.Key{
			Workspace: string(DefaultWorkspace), Label: "first key", Role: string(api.RoleOwner), Operator: true,
		}
		return row, len(all) == 0, err
	}, nil)
	return token, err
}

// Issue makes an owner's key of any workspace, and the workspace if it does not exist. It is for the program itself,
// never for a caller.
func (k *Keys) Issue(ctx context.Context, workspace api.Workspace, label string) (Key, string, error) {
	return k.Create(ctx, Principal{Workspace: workspace}, KeyRequest{Label: label, Role: api.RoleOwner})
}

// rights are what a manager of keys may give and take.
type rights struct {
	all      bool // the program itself
	role     api.Role
	operator bool
	scopes   Scopes
	networks []netip.Prefix
}

// rightsOf reads the rights of a caller from its key, which must still be valid. A caller without a key is the program.
func rightsOf(ctx context.Context, tx *store.Tx, p Principal) (rights, error) {
	if p.Workspace == "" {
		return rights{}, errInvalidKey()
	}
	if p.KeyPrefix == "" {
		return rights{all: true, role: api.RoleOwner, operator: true}, nil
	}
	row, err := tx.Key(ctx, p.KeyPrefix)
	if errors.Is(err, store.ErrNotFound) || err == nil && expired(row, time.Now()) {
		return rights{}, errInvalidKey()
	}
	if err != nil {
		return rights{}, err
	}
	c, err := read(row, time.Now())
	if err != nil {
		return rights{}, err
	}
	if !c.principal.Scopes.Has(api.ScopeKeys) {
		return rights{}, api.Errorf(api.Forbidden, "the key %s lacks the scope keys, which managing keys needs",
			row.Prefix)
	}
	return rights{
		role: c.principal.Role, operator: c.principal.Operator, scopes: c.principal.Scopes, networks: c.networks,
	}, nil
}

// mayGive reports why a manager may not make a key.
func (r rights) mayGive(p Principal, row store.Key) error {
	if r.all {
		return nil
	}
	networks, err := parseNetworks(strings.Fields(row.Networks))
	if err != nil {
		return err
	}
	extra := scopesOf(row) &^ r.scopes
	switch {
	case api.Workspace(row.Workspace) != p.Workspace && !r.operator:
		return api.Errorf(api.Forbidden, "workspace: only an operator may make keys of other workspaces").
			With("field", "workspace")
	case row.Operator && !r.operator:
		return api.Errorf(api.Forbidden, "operator: only an operator may make an operator's key").
			With("field", "operator")
	case api.Role(row.Role).Outranks(r.role) && !r.operator:
		return api.Errorf(api.Forbidden, "role: a key of role %s may not make one of role %s", r.role, row.Role).
			With("field", "role")
	case extra != 0:
		return api.Errorf(api.Forbidden, "scopes: your key lacks the scopes %v and cannot give them", extra.List()).
			With("field", "scopes")
	case !within(networks, r.networks):
		return api.Errorf(api.Forbidden, "cidrs: your key is limited to %v: name networks inside them", r.networks).
			With("field", "cidrs")
	}
	return nil
}

// Create makes a key, by default in the workspace of the caller. The token cannot be read again later.
//
// The caller needs the scope keys and can give only what its own key has.
func (k *Keys) Create(ctx context.Context, p Principal, req KeyRequest) (Key, string, error) {
	row, err := newRow(p, req)
	if err != nil {
		return Key{}, "", err
	}
	return k.create(ctx, func(ctx context.Context, tx *store.Tx) (store.Key, bool, error) {
		r, err := rightsOf(ctx, tx, p)
		if err != nil {
			return row, false, err
		}
		return row, true, r.mayGive(p, row)
	}, nil)
}

// newRow checks a request and makes its row, without the secret part.
func newRow(p Principal, req KeyRequest) (store.Key, error) {
	asked := api.TokenRequest{
		Label: req.Label, Role: req.Role, Operator: req.Operator, Scopes: req.Scopes, CIDRs: slices.Clone(req.CIDRs),
	}
	if !req.Expires.IsZero() {
		asked.ExpiresAt = &req.Expires
	}
	if err := asked.Validate(); err != nil {
		return store.Key{}, err
	}
	row := store.Key{
		Workspace: string(p.Workspace),
		Label:     asked.Label,
		Role:      string(asked.Role),
		Operator:  req.Operator,
		Networks:  strings.Join(asked.CIDRs, " "),
		Expires:   store.Micros(req.Expires),
	}
	if req.Workspace != "" {
		if !api.ValidTemplateName(string(req.Workspace)) {
			return row, api.Errorf(api.Invalid, "workspace: use 1 to 64 of a-z A-Z 0-9 . _ -").
				With("field", "workspace")
		}
		row.Workspace = string(req.Workspace)
	}
	for _, s := range NewScopes(req.Scopes...).List() {
		row.Scopes = strings.TrimSpace(row.Scopes + " " + string(s))
	}
	return row, nil
}

// List returns the keys of the caller's workspace, newest first. The caller needs the scope keys.
func (k *Keys) List(ctx context.Context, p Principal) ([]Key, error) {
	if _, err := rightsOf(ctx, k.db.Read(), p); err != nil {
		return nil, api.AsError(err)
	}
	rows, err := k.db.Read().Keys(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]Key, 0, len(rows))
	for _, r := range rows {
		out = append(out, k.view(r))
	}
	return out, nil
}

// Revoke revokes the key of the caller's workspace with a prefix at once.
//
// The caller needs the scope keys. An admin cannot revoke the key of an owner, and only an operator that of one. The
// last key that can manage the keys of a workspace, and the last one that can operate the node, cannot be revoked.
// SSH keys of a key end with it.
func (k *Keys) Revoke(ctx context.Context, p Principal, prefix string) error {
	err := k.db.Write(ctx, "revoke key", func(ctx context.Context, tx *store.Tx) error {
		target, err := mayTake(ctx, tx, p, prefix)
		if err != nil {
			return err
		}
		if err := notLast(ctx, tx, target); err != nil {
			return err
		}
		if err := tx.DeleteSSHKeysOf(ctx, target.Prefix); err != nil {
			return err
		}
		return tx.DeleteKey(ctx, target.Workspace, target.Prefix)
	})
	if err != nil {
		return api.AsError(err)
	}
	k.forget()
	return nil
}

// mayTake returns the key of the caller's workspace with a prefix, if the caller may revoke and rotate it.
func mayTake(ctx context.Context, tx *store.Tx, p Principal, prefix string) (store.Key, error) {
	r, err := rightsOf(ctx, tx, p)
	if err != nil {
		return store.Key{}, err
	}
	target, err := tx.Key(ctx, prefix)
	if errors.Is(err, store.ErrNotFound) || err == nil && target.Workspace != string(p.Workspace) {
		return target, api.Errorf(api.NotFound, "key %q not found: list yours at /v1/me/tokens", abbreviate(prefix))
	}
	switch {
	case err != nil:
	case target.Operator && !r.operator:
		err = api.Errorf(api.Forbidden, "key %s is an operator's: only an operator may change it", target.Prefix)
	case api.Role(target.Role).Outranks(r.role) && !r.operator:
		err = api.Errorf(api.Forbidden, "key %s has the role %s: a key of role %s may not change it",
			target.Prefix, target.Role, r.role)
	}
	return target, err
}

// notLast refuses to revoke a key without which no caller could manage the keys of the workspace, or the node, for as
// long as the key would have.
func notLast(ctx context.Context, tx *store.Tx, target store.Key) error {
	now := time.Now()
	others := func(workspace string, scope api.Scope) (bool, error) {
		all, err := tx.Keys(ctx, workspace)
		return slices.ContainsFunc(all, func(row store.Key) bool {
			outlives := row.Expires == 0 || target.Expires > 0 && row.Expires >= target.Expires
			return row.Prefix != target.Prefix && outlives && !expired(row, now) && scopesOf(row).Has(scope)
		}), err
	}
	if expired(target, now) {
		return nil
	}
	for _, one := range []struct {
		scope     api.Scope
		workspace string
		what      string
	}{
		{api.ScopeKeys, target.Workspace, "manage the keys of workspace " + target.Workspace},
		{api.ScopeNode, "", "operate the node"},
	} {
		if !scopesOf(target).Has(one.scope) {
			continue
		}
		if ok, err := others(one.workspace, one.scope); err != nil {
			return err
		} else if !ok {
			return api.Errorf(api.Conflict,
				"key %s is the last one that can %s: create another one first, or rotate it", target.Prefix, one.what)
		}
	}
	return nil
}

// Rotate makes a key with the rights of another one, which ends after the overlap. If that one expires, the new key
// lives as long as that one did from its start. SSH keys go over to the new key.
//
// The caller needs the rights to revoke the key and to make it.
func (k *Keys) Rotate(
	ctx context.Context,
	p Principal,
	prefix string,
	overlap time.Duration,
) (key Key, token string, until time.Time, err error) {
	if overlap < 0 || overlap > api.MaxKeyOverlap {
		return key, "", until, api.Errorf(api.Invalid, "overlap_seconds: use 0 to %d",
			int64(api.MaxKeyOverlap.Seconds())).With("field", "overlap_seconds")
	}
	var old store.Key
	key, token, err = k.create(ctx, func(ctx context.Context, tx *store.Tx) (store.Key, bool, error) {
		if old, err = mayTake(ctx, tx, p, prefix); err != nil {
			return old, false, err
		}
		now := time.Now()
		if expired(old, now) || old.ReplacedBy != "" {
			return old, false, api.Errorf(api.Conflict, "key %s has ended or was rotated already: create a new one",
				old.Prefix)
		}
		r, err := rightsOf(ctx, tx, p)
		if err != nil {
			return old, false, err
		}
		row := old
		row.LastUsed = 0
		if old.Expires > 0 {
			row.Expires = store.Micros(now) + old.Expires - old.Created
		}
		until = now.Add(overlap)
		if end := store.Time(old.Expires); old.Expires > 0 && end.Before(until) {
			until = end
		}
		return row, true, r.mayGive(p, row)
	}, func(ctx context.Context, tx *store.Tx, by string) error {
		if err := tx.MoveSSHKeys(ctx, old.Prefix, by); err != nil {
			return err
		}
		return tx.ReplaceKey(ctx, old.Prefix, by, store.Micros(until))
	})
	if err != nil {
		return Key{}, "", time.Time{}, err
	}
	k.forget()
	return key, token, until, nil
}

func abbreviate(prefix string) string {
	if len(prefix) > prefixLen {
		return prefix[:prefixLen] + "..."
	}
	return prefix
}

func (k *Keys) view(r store.Key) Key {
	return Key{
		Prefix:     r.Prefix,
		Workspace:  api.Workspace(r.Workspace),
		Label:      r.Label,
		Role:       api.Role(r.Role),
		Operator:   r.Operator,
		Scopes:     scopesOf(r).List(),
		CIDRs:      strings.Fields(r.Networks),
		Created:    store.Time(r.Created),
		LastUsed:   k.lastUse(r),
		Expires:    store.Time(r.Expires),
		ReplacedBy: r.ReplacedBy,
	}
}
