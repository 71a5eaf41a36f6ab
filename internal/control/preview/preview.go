// Package preview records signed preview URLs, so that they can be listed and revoked.
//
// A signed URL is valid by its signature alone. This package knows its id, never its token, until it expires; which
// requests a URL allows is decided by the port proxy. A revocation in this process ends open requests at once; one in
// another process on a shared store counts for the next request.
//
// All methods may be called concurrently.
package preview

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Why the context of Use ended.
var (
	ErrRevoked = errors.New("the preview was revoked")
	ErrExpired = errors.New("the preview has expired")
)

// maxPerSandbox bounds the previews of a sandbox that have not expired.
const maxPerSandbox = 4096

// maxLifetime is how long previews are valid at most: revocations of previews without rows are kept that long.
const maxLifetime = 8 * 24 * time.Hour

// Previews records previews. Make it with New.
type Previews struct {
	db  *store.DB
	log *slog.Logger

	mu   sync.Mutex
	uses map[string]map[*use]struct{} // open requests by id of their preview; guarded by mu
}

// use is an open request.
type use struct{ end context.CancelCauseFunc }

// New returns Previews over a store. It does not touch the store.
func New(db *store.DB, log *slog.Logger) (*Previews, error) {
	if db == nil || log == nil {
		return nil, errors.New("preview: store and log are required")
	}
	return &Previews{db: db, log: log, uses: map[string]map[*use]struct{}{}}, nil
}

// Record records a new preview of a sandbox that the caller owns.
//
// It forgets previews that have expired.
func (s *Previews) Record(ctx context.Context, p auth.Principal, sandbox api.SandboxID, info api.PreviewInfo) error {
	row := &store.Preview{
		ID: info.ID, Workspace: string(p.Workspace), Sandbox: string(sandbox), Port: info.Port,
		Paths: strings.Join(info.Paths, ","), Key: p.KeyPrefix,
		Created: store.Micros(info.CreatedAt), Expires: store.Micros(info.ExpiresAt),
	}
	return s.db.Write(ctx, "preview", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.DeletePreviews(ctx, row.Created); err != nil {
			return err
		}
		rows, err := tx.Previews(ctx, row.Sandbox, row.Created)
		if err != nil {
			return err
		}
		if len(rows) >= maxPerSandbox {
			return api.Errorf(api.QuotaExceeded, "sandbox %s has %d previews: wait until some expire, or use one again",
				sandbox, len(rows))
		}
		return tx.InsertPreview(ctx, row)
	})
}

// List returns the previews of a sandbox that have not expired, newest first.
func (s *Previews) List(ctx context.Context, sandbox api.SandboxID) ([]api.PreviewInfo, error) {
	rows, err := s.db.Read().Previews(ctx, string(sandbox), store.Micros(time.Now()))
	if err != nil {
		return nil, err
	}
	out := []api.PreviewInfo{}
	for _, r := range rows {
		if r.Port == 0 {
			continue
		}
		info := api.PreviewInfo{
			ID: r.ID, Port: r.Port, CreatedBy: r.Key,
			CreatedAt: store.Time(r.Created), ExpiresAt: store.Time(r.Expires),
		}
		if r.Paths != "" {
			info.Paths = strings.Split(r.Paths, ",")
		}
		if r.Revoked > 0 {
			at := store.Time(r.Revoked)
			info.RevokedAt = &at
		}
		out = append(out, info)
	}
	return out, nil
}

// Revoke ends one preview of a sandbox: no request succeeds by it any more, and open ones end.
func (s *Previews) Revoke(ctx context.Context, sandbox api.SandboxID, id string) error {
	err := s.db.Write(ctx, "preview", func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.Preview(ctx, id)
		if err == nil && row.Sandbox != string(sandbox) {
			err = fmt.Errorf("preview of another sandbox: %w", store.ErrNotFound)
		}
		if err != nil {
			return err
		}
		return tx.RevokePreview(ctx, id, store.Micros(time.Now()))
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "sandbox %s has no preview %.60q", sandbox, id)
	}
	if err != nil {
		return err
	}
	s.end(id)
	return nil
}

// RevokeAll ends all previews of a sandbox that the caller owns. earlier is the id of those that have no rows, since an
// earlier release made them.
func (s *Previews) RevokeAll(ctx context.Context, p auth.Principal, sandbox api.SandboxID, earlier string) error {
	now := time.Now()
	ids := []string{earlier}
	err := s.db.Write(ctx, "preview", func(ctx context.Context, tx *store.Tx) error {
		ids = ids[:1]
		rows, err := tx.Previews(ctx, string(sandbox), store.Micros(now))
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Revoked > 0 {
				continue
			}
			if err := tx.RevokePreview(ctx, r.ID, store.Micros(now)); err != nil {
				return err
			}
			ids = append(ids, r.ID)
		}
		_, err = tx.Preview(ctx, earlier)
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		return tx.InsertPreview(ctx, &store.Preview{
			ID: earlier, Workspace: string(p.Workspace), Sandbox: string(sandbox), Key: p.KeyPrefix,
			Created: store.Micros(now), Expires: store.Micros(now.Add(maxLifetime)), Revoked: store.Micros(now),
		})
	})
	if err != nil {
		return err
	}
	for _, id := range ids {
		s.end(id)
	}
	return nil
}

// IsRevoked reports whether a preview was revoked. If the store fails, it was.
func (s *Previews) IsRevoked(ctx context.Context, id string) bool {
	row, err := s.db.Read().Preview(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return false
	}
	if err != nil && ctx.Err() == nil {
		s.log.Error("preview refused: the store failed", "err", err)
	}
	return err != nil || row.Revoked > 0
}

// Use returns a context for a request that a preview allows. It ends when ctx ends, or the preview expires or is
// revoked. Use returns false if the preview was revoked before.
func (s *Previews) Use(ctx context.Context, id string, expires time.Time) (context.Context, bool) {
	ctx, cancel := context.WithDeadlineCause(ctx, expires, ErrExpired)
	ctx, end := context.WithCancelCause(ctx)
	u := &use{end: end}
	s.mu.Lock()
	if s.uses[id] == nil {
		s.uses[id] = map[*use]struct{}{}
	}
	s.uses[id][u] = struct{}{}
	s.mu.Unlock()
	context.AfterFunc(ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.uses[id], u)
		if len(s.uses[id]) == 0 {
			delete(s.uses, id)
		}
	})
	// A revocation before this read is seen by it, and one after it ends the context.
	if s.IsRevoked(ctx, id) {
		end(ErrRevoked)
		return ctx, false
	}
	return ctx, true
}

// end ends the open requests of a preview.
func (s *Previews) end(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for u := range s.uses[id] {
		u.end(ErrRevoked)
	}
}
