package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// The form of a key: "pds_" and 32 hexadecimal digits, of which the first eight identify it.
const (
	keyPrefix  = "pds_"
	keyDigits  = 32
	nameDigits = 8
	prefixLen  = len(keyPrefix) + nameDigits
)

// The scopes of keys, as they are stored.
const (
	scopeAdmin  = "admin"
	scopeMember = "member"
)

// KeyRequest describes a key to make.
type KeyRequest struct {
	Label   string        // text for people, at most 128 bytes
	Admin   bool          // the key may manage keys
	Expires time.Duration // time until it expires; 0: never
}

// Key is a key without its token. Times that do not apply are zero.
type Key struct {
	Prefix                     string
	Workspace                  api.Workspace
	Label                      string
	Admin                      bool
	Created, LastUsed, Expires time.Time
}

// Keys makes, checks and revokes API keys. Make it with New.
type Keys struct {
	db  *store.DB
	log *slog.Logger

	mu    sync.Mutex
	cache map[[sha256.Size]byte]cached // by hash of the token
	epoch uint64                       // grows with every revocation
}

// cached is a key that was valid when it was read.
type cached struct {
	row  store.Key
	at   time.Time // when it was read from the store
	used time.Time // last use that was written
}

// The cache of valid keys. A revocation by this process takes effect at once, one by another process on a shared store
// within cacheTTLShared.
const (
	cacheTTL       = time.Minute
	cacheTTLShared = 2 * time.Second
	maxCached      = 1024
	useResolution  = time.Minute // precision of the last use
)

// New makes Keys; it does not touch the store.
func New(db *store.DB, log *slog.Logger) (*Keys, error) {
	if db == nil || log == nil {
		return nil, errors.New("auth: store and log are required")
	}
	return &Keys{db: db, log: log, cache: map[[sha256.Size]byte]cached{}}, nil
}

// errInvalidKey returns the same error for every invalid token, so that it reveals nothing about valid ones.
func errInvalidKey() error {
	return api.Errorf(
		api.Unauthenticated,
		"the API key is missing, wrong, expired or revoked: send one as Authorization: Bearer pds_...",
	)
}

// wellFormed reports whether a token has the form of a key.
func wellFormed(token string) bool {
	if len(token) != len(keyPrefix)+keyDigits || !strings.HasPrefix(token, keyPrefix) {
		return false
	}
	for _, c := range token[len(keyPrefix):] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Authenticate returns the caller with a token. The error has the code unauthenticated if the token is not valid.
func (k *Keys) Authenticate(ctx context.Context, token string) (Principal, error) {
	if !wellFormed(token) {
		return Principal{}, errInvalidKey()
	}
	hash := sha256.Sum256([]byte(token))
	now := time.Now()
	c, known, epoch := k.lookup(hash, now)
	for !known {
		row, err := k.db.Read().Key(ctx, token[:prefixLen])
		if errors.Is(err, store.ErrNotFound) {
			return Principal{}, errInvalidKey()
		}
		if err != nil {
			return Principal{}, api.AsError(err)
		}
		want, err := hex.DecodeString(row.Hash)
		if err != nil || subtle.ConstantTimeCompare(want, hash[:]) != 1 {
			return Principal{}, errInvalidKey()
		}
		c = cached{row: row, at: now, used: store.Time(row.LastUsed)}
		epoch, known = k.store(hash, c, epoch)
	}
	if c.row.Expires > 0 && store.Micros(now) >= c.row.Expires {
		return Principal{}, errInvalidKey()
	}
	k.recordUse(ctx, hash, c, now)
	return Principal{
		Workspace: api.Workspace(c.row.Workspace),
		KeyPrefix: c.row.Prefix,
		Admin:     c.row.Scope == scopeAdmin,
	}, nil
}

func (k *Keys) lookup(hash [sha256.Size]byte, now time.Time) (cached, bool, uint64) {
	fresh := cacheTTL
	if k.db.Shared() {
		fresh = cacheTTLShared
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.cache[hash]
	return c, ok && now.Sub(c.at) < fresh, k.epoch
}

// store caches a key that was read in an epoch. If a key was revoked since then, which may be this one, store returns
// the current epoch and false, and the key must be read again.
func (k *Keys) store(hash [sha256.Size]byte, c cached, epoch uint64) (uint64, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if epoch != k.epoch {
		return k.epoch, false
	}
	if len(k.cache) >= maxCached {
		clear(k.cache) // it fills again with the keys in use
	}
	k.cache[hash] = c
	return epoch, true
}

// recordUse writes the last use of a key, at most once a minute. The last use is a hint: an error does not fail the
// call.
func (k *Keys) recordUse(ctx context.Context, hash [sha256.Size]byte, c cached, now time.Time) {
	if now.Sub(c.used) < useResolution {
		return
	}
	k.mu.Lock()
	if again, ok := k.cache[hash]; ok {
		again.used = now
		k.cache[hash] = again
	}
	k.mu.Unlock()
	err := k.db.Write(ctx, "use key", func(ctx context.Context, tx *store.Tx) error {
		return tx.TouchKey(ctx, c.row.Prefix, store.Micros(now))
	})
	if err != nil && ctx.Err() == nil {
		k.log.Warn("last use of a key not written", "err", err)
	}
}

// newToken returns a random token.
func newToken() string {
	var b [keyDigits / 2]byte
	rand.Read(b[:]) //nolint:errcheck // crypto/rand.Read never returns an error since Go 1.24
	return keyPrefix + hex.EncodeToString(b[:])
}

// insert inserts a new key of a workspace and returns it with its token.
func (k *Keys) insert(ctx context.Context, tx *store.Tx, workspace api.Workspace, req KeyRequest) (Key, string, error) {
	now := time.Now()
	token := newToken()
	hash := sha256.Sum256([]byte(token))
	row := store.Key{
		Prefix:    token[:prefixLen],
		Workspace: string(workspace),
		Hash:      hex.EncodeToString(hash[:]),
		Label:     req.Label,
		Scope:     scopeMember,
		Created:   store.Micros(now),
	}
	if req.Admin {
		row.Scope = scopeAdmin
	}
	if req.Expires > 0 {
		row.Expires = store.Micros(now.Add(req.Expires))
	}
	if err := tx.InsertKey(ctx, &row); err != nil {
		return Key{}, "", err
	}
	return view(row), token, nil
}

// attempts is how many tokens create tries, because the prefix of a token, which has 32 bits, may be taken.
const attempts = 8

// create makes a key if only returns true. It tries another token if the prefix is taken.
func (k *Keys) create(
	ctx context.Context,
	workspace api.Workspace,
	req KeyRequest,
	only func(context.Context, *store.Tx) (bool, error),
) (key Key, token string, err error) {
	for range attempts {
		err = k.db.Write(ctx, "create key", func(ctx context.Context, tx *store.Tx) error {
			key, token = Key{}, ""
			if ok, err := only(ctx, tx); err != nil || !ok {
				return err
			}
			w := &store.Workspace{ID: string(workspace), Name: string(workspace), Created: store.Micros(time.Now())}
			if err := tx.PutWorkspace(ctx, w); err != nil {
				return err
			}
			key, token, err = k.insert(ctx, tx, workspace, req)
			return err
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

// CreateFirst makes an admin key of the default workspace and returns its token.
//
// If the store has a key already, CreateFirst returns "". A token cannot be read again later.
func (k *Keys) CreateFirst(ctx context.Context) (token string, err error) {
	_, token, err = k.create(
		ctx,
		DefaultWorkspace,
		KeyRequest{Label: "first key", Admin: true},
		func(ctx context.Context, tx *store.Tx) (bool, error) {
			all, err := tx.Keys(ctx, "")
			return len(all) == 0, err
		},
	)
	return token, err
}

// Issue makes an admin key of any workspace, and the workspace if it does not exist. It is for the program itself,
// never for a caller.
func (k *Keys) Issue(ctx context.Context, workspace api.Workspace, label string) (Key, string, error) {
	return k.create(ctx, workspace, KeyRequest{Label: label, Admin: true}, unconditionally)
}

func unconditionally(context.Context, *store.Tx) (bool, error) { return true, nil }

// Create makes a key in the workspace of the caller, who must be an admin. The token cannot be read again later.
func (k *Keys) Create(ctx context.Context, p Principal, req KeyRequest) (Key, string, error) {
	if err := requireAdmin(p); err != nil {
		return Key{}, "", err
	}
	if len(req.Label) > 128 || strings.ContainsRune(req.Label, 0) || req.Expires < 0 {
		return Key{}, "", api.Errorf(api.Invalid, "label: use at most 128 bytes of text").With("field", "label")
	}
	return k.create(ctx, p.Workspace, req, unconditionally)
}

func requireAdmin(p Principal) error {
	if p.Workspace == "" {
		return errInvalidKey()
	}
	if !p.Admin {
		return api.Errorf(api.Forbidden, "only an admin key can manage keys")
	}
	return nil
}

// List returns the keys of the caller's workspace, newest first. The caller must be an admin.
func (k *Keys) List(ctx context.Context, p Principal) ([]Key, error) {
	if err := requireAdmin(p); err != nil {
		return nil, err
	}
	rows, err := k.db.Read().Keys(ctx, string(p.Workspace))
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]Key, 0, len(rows))
	for _, r := range rows {
		out = append(out, view(r))
	}
	return out, nil
}

// Revoke revokes the key of the caller's workspace with a prefix at once. The caller must be an admin.
func (k *Keys) Revoke(ctx context.Context, p Principal, prefix string) error {
	if err := requireAdmin(p); err != nil {
		return err
	}
	err := k.db.Write(ctx, "revoke key", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteKey(ctx, string(p.Workspace), prefix)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "key %q not found: list yours at /v1/me/tokens", abbreviate(prefix))
	}
	if err != nil {
		return api.AsError(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	clear(k.cache)
	return nil
}

func abbreviate(prefix string) string {
	if len(prefix) > prefixLen {
		return prefix[:prefixLen] + "..."
	}
	return prefix
}

func view(r store.Key) Key {
	return Key{Prefix: r.Prefix, Workspace: api.Workspace(r.Workspace), Label: r.Label, Admin: r.Scope == scopeAdmin,
		Created: store.Time(r.Created), LastUsed: store.Time(r.LastUsed), Expires: store.Time(r.Expires)}
}
