package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
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

// Keys makes, checks and revokes API keys. Make it with New.
type Keys struct {
	db  *store.DB
	log *slog.Logger

	mu    sync.Mutex
	cache map[[sha256.Size]byte]cached // by hash of the token
	epoch uint64                       // grows with every revocation
	used  map[string]int64             // last uses that are not written yet, by prefix
}

// cached is a key that was valid when it was read.
type cached struct {
	row       store.Key
	principal Principal
	networks  []netip.Prefix // that the key may be used from; none: all
	at        time.Time      // when it was read from the store
}

// The cache of valid keys. A revocation by this process takes effect at once, one by another process within
// cacheTTLShared if the store is shared, and within cacheTTL otherwise.
const (
	cacheTTL       = 15 * time.Second
	cacheTTLShared = 2 * time.Second
	maxCached      = 1024
	useResolution  = time.Minute // how often last uses are written
)

// New makes Keys; it does not touch the store. Last uses are written while Run runs.
func New(db *store.DB, log *slog.Logger) (*Keys, error) {
	if db == nil || log == nil {
		return nil, errors.New("auth: store and log are required")
	}
	return &Keys{db: db, log: log, cache: map[[sha256.Size]byte]cached{}, used: map[string]int64{}}, nil
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

// PrefixOf returns the prefix of a token, which is no secret. It is "" for text without the form of a key.
func PrefixOf(token string) string {
	if !wellFormed(token) {
		return ""
	}
	return token[:prefixLen]
}

// Authenticate returns the caller with a token at an address.
//
// The error has the code unauthenticated if the token is not valid, and forbidden if the key may not be used from the
// address. An address that is not known is in no network.
func (k *Keys) Authenticate(ctx context.Context, token string, from netip.Addr) (Principal, error) {
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
		if c, err = read(row, now); err != nil {
			return Principal{}, api.AsError(err)
		}
		epoch, known = k.store(hash, c, epoch)
	}
	return k.admit(c, from, now)
}

// OfKey returns the caller with the key that has a prefix, at an address.
//
// It is for credentials that the key gave out: they end with the key, and allow no more than it does. The errors are
// those of Authenticate.
func (k *Keys) OfKey(ctx context.Context, prefix string, from netip.Addr) (Principal, error) {
	row, err := k.db.Read().Key(ctx, prefix)
	if errors.Is(err, store.ErrNotFound) {
		return Principal{}, errInvalidKey()
	}
	if err != nil {
		return Principal{}, api.AsError(err)
	}
	now := time.Now()
	c, err := read(row, now)
	if err != nil {
		return Principal{}, api.AsError(err)
	}
	return k.admit(c, from, now)
}

// admit returns the caller with a key if the key is valid now, at an address.
func (k *Keys) admit(c cached, from netip.Addr, now time.Time) (Principal, error) {
	if expired(c.row, now) {
		return Principal{}, errInvalidKey()
	}
	in := func(p netip.Prefix) bool { return p.Contains(from.Unmap()) }
	if len(c.networks) > 0 && !slices.ContainsFunc(c.networks, in) {
		return Principal{}, api.Errorf(
			api.Forbidden,
			"the key %s may not be used from %s: it is limited to certain networks",
			c.row.Prefix,
			from,
		)
	}
	k.recordUse(c.row.Prefix, now)
	return c.principal, nil
}

func expired(row store.Key, now time.Time) bool {
	return row.Expires > 0 && store.Micros(now) >= row.Expires
}

// read makes the cached form of a row.
func read(row store.Key, now time.Time) (cached, error) {
	networks, err := parseNetworks(strings.Fields(row.Networks))
	if err != nil {
		return cached{}, fmt.Errorf("key %s: %w", row.Prefix, err)
	}
	role, scopes := api.Role(row.Role), scopesOf(row)
	return cached{
		row: row, networks: networks, at: now,
		principal: Principal{
			Workspace: api.Workspace(row.Workspace),
			KeyPrefix: row.Prefix,
			Role:      role,
			Admin:     isAdmin(role),
			Operator:  scopes.Has(api.ScopeNode),
			Scopes:    scopes,
		},
	}, nil
}

// scopesOf returns what a key may do: what its row says, but no more than its role has.
func scopesOf(row store.Key) Scopes {
	all := NewScopes(api.Role(row.Role).Scopes(row.Operator)...)
	if row.Scopes == "" {
		return all
	}
	var set Scopes
	for _, s := range strings.Fields(row.Scopes) {
		set |= NewScopes(api.Scope(s))
	}
	return set & all
}

func parseNetworks(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := api.ParseCIDR(text)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// Known reports whether a token was valid lately. It does not touch the store.
func (k *Keys) Known(token string) bool {
	hash := sha256.Sum256([]byte(token))
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.cache[hash]
	return ok
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

// forget empties the cache, so that a change of a key takes effect at once.
func (k *Keys) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.epoch++
	clear(k.cache)
}

// recordUse notes the last use of a key, which Run writes. While more keys are in use than the bound, the last use of
// some is not noted.
func (k *Keys) recordUse(prefix string, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.used[prefix]; ok || len(k.used) < maxCached {
		k.used[prefix] = store.Micros(now)
	}
}

// lastUse returns the last use of a key, which may not be written yet.
func (k *Keys) lastUse(row store.Key) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return store.Time(max(row.LastUsed, k.used[row.Prefix]))
}

// Run writes the last uses of keys, once a minute, until ctx ends, and then the rest.
func (k *Keys) Run(ctx context.Context) error {
	t := time.NewTicker(useResolution)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeoutCause(
				context.WithoutCancel(ctx),
				10*time.Second,
				errors.New("writing the last uses of keys took too long"),
			)
			defer cancel()
			return k.writeUses(last)
		case <-t.C:
		}
		if err := k.writeUses(ctx); err != nil && ctx.Err() == nil {
			k.log.Warn("last uses of keys not written", "err", err)
		}
	}
}

// writeUses writes the noted uses in one transaction. If it fails they are lost: a last use is a hint.
func (k *Keys) writeUses(ctx context.Context) error {
	k.mu.Lock()
	used := k.used
	k.used = map[string]int64{}
	k.mu.Unlock()
	if len(used) == 0 {
		return nil
	}
	return k.db.Write(ctx, "use keys", func(ctx context.Context, tx *store.Tx) error { return tx.TouchKeys(ctx, used) })
}
