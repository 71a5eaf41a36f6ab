package database

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/database/server"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Parts of the storage, in percent, from which on it grows, is read-only, and is writable again.
const (
	growFrom     = 75
	readOnlyFrom = 92
	writableFrom = 85
)

// measureDue reports whether the storage of a database that runs was not measured lately.
func (s *Service) measureDue(row *store.Database) bool {
	l := s.of(api.DatabaseID(row.ID))
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.measured) >= s.cfg.MeasureInterval
}

// keepStorage makes the storage of a database larger when it fills, up to its limit. When that is nearly full the
// server is made read-only, since one without space for its log would stop. The lock is held.
func (s *Service) keepStorage(ctx context.Context, row *store.Database) error {
	l := s.of(api.DatabaseID(row.ID))
	l.mu.Lock()
	l.measured = time.Now()
	l.mu.Unlock()
	m, err := s.primary(ctx, row.ID)
	if err != nil || m.Volume == "" { // the storage of a branch belongs to its machine
		return err
	}
	v, err := s.db.Read().Volume(ctx, m.Volume)
	if err != nil {
		return err
	}
	var has server.Storage
	ask := func(f func(*pgx.Conn) error) error {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		return s.ask(ctx, row, f)
	}
	err = ask(func(conn *pgx.Conn) (err error) {
		has, err = server.ReadStorage(ctx, conn)
		return err
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.stored = has.Bytes
	l.mu.Unlock()
	size := int64(v.SizeMiB)
	percent := func() int64 { return has.Bytes * 100 / (size << 20) }
	if most := row.StorageMaxMiB; percent() >= growFrom && size < most {
		size = min(size*3/2, most)
		if _, err := s.volumes.Update(ctx, as(row), m.Volume, api.VolumePatch{SizeMB: int(size)}); err != nil {
			return err
		}
		s.log.Info("the storage of a database has grown", "database", row.ID, "mib", size)
	}
	if full := percent() >= readOnlyFrom; full && !has.ReadOnly || has.ReadOnly && percent() < writableFrom {
		s.log.Warn("the storage of a database is full, or has space again", "database", row.ID, "full", full)
		return ask(func(conn *pgx.Conn) error { return server.SetReadOnly(ctx, conn, full) })
	}
	return nil
}
