package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/basebackup"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
)

// member is a database with a running relay.
type member struct {
	primary Primary
	relay   *walrelay.Relay
	archive *archive.Archive
	now     func() time.Time

	ctx   context.Context // ends with the member
	stop  context.CancelCauseFunc
	group sync.WaitGroup // the relay and a base backup
	base  chan struct{}  // holds a token while a base backup is taken
	due   chan struct{}  // and one while that is by the schedule

	mu    sync.Mutex
	ended bool // guarded by mu; nothing is started any more

	checked bool         // the archive was looked through for a hole; of the loop of base backups
	hole    archive.Hole // the last one that a base backup was ordered for; of the loop of base backups
}

// errEnded is the cause of the end of what a member does.
var errEnded = errors.New("the backups of the database have ended")

func (k *Keeper) newMember(ctx context.Context, p Primary) (*member, error) {
	a, err := k.archive(ctx, p.Database)
	if err != nil {
		return nil, err
	}
	relay, err := walrelay.New(walrelay.Config{
		Server: p.replication(), Archive: a, Slot: SlotName(p.Database), Dir: k.spool(p.Database),
		Synchronous: p.Synchronous, SpoolBytes: k.cfg.SpoolBytes, Partial: k.cfg.Partial,
		Log: k.cfg.Log.With("database", p.Database), Now: k.cfg.Now,
	})
	if err != nil {
		return nil, err
	}
	m := &member{primary: p, relay: relay, archive: a, now: k.cfg.Now, base: make(chan struct{}, 1),
		due: make(chan struct{}, 1)}
	m.ctx, m.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return m, nil
}

// run starts the relay.
func (m *member) run(log *slog.Logger) {
	m.group.Go(func() {
		if err := m.relay.Run(m.ctx); err != nil {
			log.Error("WAL relay ended", "database", m.primary.Database, "err", err)
		}
	})
	m.group.Go(func() {
		// A relay that has diverged stays so until an operator does something.
		status, err := m.relay.Wait(m.ctx, func(s walrelay.Status) bool { return s.State == walrelay.Diverged })
		if err == nil {
			log.Error("the log of a database is not the one that its backups have; nothing more of it is backed up",
				"database", m.primary.Database, "err", status.ConnectError)
		}
	})
}

// end stops the member and waits.
func (m *member) end() {
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.stop(errEnded)
	m.group.Wait()
}

// enter announces work that end waits for; it reports whether that may begin.
func (m *member) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return false
	}
	m.group.Add(1)
	return true
}

// flush waits until everything that the server has confirmed is in the archive, and returns the server's time before.
func (m *member) flush(ctx context.Context) (time.Time, error) {
	at, now, err := m.primary.position(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("end of the log of %s: %w", m.primary.Database, err)
	}
	return now, m.relay.Flush(ctx, at)
}

// take takes a base backup. It ends with ctx and with the member.
func (m *member) take(ctx context.Context) (archive.Base, error) {
	if !m.enter() {
		return archive.Base{}, errEnded
	}
	defer m.group.Done()
	select {
	case m.base <- struct{}{}:
		defer func() { <-m.base }()
	case <-m.ctx.Done():
		return archive.Base{}, errEnded
	case <-ctx.Done():
		return archive.Base{}, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.ctx, func() { cancel(errEnded) })()
	b, err := basebackup.Take(ctx, m.primary.replication(), m.archive, basebackup.Options{
		Variant: m.primary.Variant, Collation: m.primary.Collation, Now: m.now,
		Archived: func(ctx context.Context, _ wal.Timeline, at wal.LSN) error { return m.relay.Flush(ctx, at) },
	})
	if err != nil && m.ctx.Err() != nil {
		err = errors.Join(errEnded, err)
	}
	return b, err
}
