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
	if err == nil && m.Volume == "" { // a branch that an earlier release has made
		err = s.keepVolume(ctx, row, &m)
	}
	if err != nil {
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

// keepVolume makes a volume of the storage of a server that belongs to its machine alone.
func (s *Service) keepVolume(ctx context.Context, row *store.Database, m *store.DatabaseMember) error {
	box, err := s.boxes.Get(ctx, as(row), api.SandboxID(m.Sandbox))
	if err != nil {
		return err
	}
	for _, has := range box.Volumes {
		if !has.Private { // it is one already: the commit failed
			m.Volume = string(has.ID)
		}
	}
	if m.Volume == "" {
		v, err := s.volumes.Keep(ctx, as(row), owner(row), box.ID)
		if err != nil {
			return err
		}
		m.Volume = string(v.ID)
	}
	return s.db.Write(ctx, "database volume", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabaseMember(ctx, m, m.State)
	})
}

// growTo makes the storage of a new server at least as large as that of another was, in MiB.
func (s *Service) growTo(ctx context.Context, row *store.Database, m *store.DatabaseMember, size int64) error {
	v, err := s.db.Read().Volume(ctx, m.Volume)
	if err != nil || int64(v.SizeMiB) >= size {
		return err
	}
	_, err = s.volumes.Update(ctx, as(row), m.Volume, api.VolumePatch{SizeMB: int(size)})
	return err
}
