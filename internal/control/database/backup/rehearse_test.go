//go:build e2e

package backup_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/test/pglab"
)

// machines makes servers of this host.
type machines struct {
	l        *lab
	fail     error
	released atomic.Int32
}

// Scratch implements backup.Machines.
func (m *machines) Scratch(context.Context, string, int64) (backup.Server, func(context.Context) error, error) {
	if m.fail != nil {
		return nil, nil, m.fail
	}
	s := pglab.Empty(m.l)
	return replaceable{s}, func(context.Context) error {
		m.released.Add(1)
		s.Kill()
		return nil
	}, nil
}

// A rehearsal passes, fails with what is damaged, and fails without a machine; one that a killed process has left ends.
func TestRehearsal(t *testing.T) {
	l := newLab(t)
	l.trust()
	m := &machines{l: l}
	k := l.keep(func(c *backup.Config) { c.Machines = m })
	l.begin(k, false)
	l.server.Exec("create table a (b int primary key); insert into a select generate_series(1, 5000)")
	l.waitFor(k, "a base backup", func(s backup.Status) bool { return !s.Based.IsZero() })
	got, err := k.Rehearse(t.Context(), id)
	if err != nil || got.State != store.RehearsalPassed || got.Bytes == 0 || m.released.Load() != 1 {
		t.Errorf("Rehearse = %+v, %v, %d released; want passed and one", got, err, m.released.Load())
	}
	// An index whose function was replaced lacks entries of its table.
	l.server.Exec("create function f(int) returns int immutable language sql as 'select $1';" +
		"create index on a (f(b)); create or replace function f(int) returns int " +
		"immutable language sql as 'select -$1'")
	got, err = k.Rehearse(t.Context(), id)
	if err != nil || got.State != store.RehearsalFailed || !strings.Contains(got.Error, "a_f_idx") {
		t.Errorf("Rehearse with a damaged index = %+v, %v; want failed with the index", got, err)
	}
	m.fail = errors.New("no machine")
	got, err = k.Rehearse(t.Context(), id)
	if err != nil || got.State != store.RehearsalFailed || !strings.Contains(got.Error, "no machine") {
		t.Errorf("Rehearse without a machine = %+v, %v; want failed", got, err)
	}
	k.stop()
	got.State, got.Ended = store.RehearsalRunning, 0
	err = l.db.Write(t.Context(), "test", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutDatabaseRehearsal(ctx, &got)
	})
	if err != nil {
		t.Fatal(err)
	}
	l.keep(nil)
	l.wait("the end of the lost rehearsal", func() bool {
		rows, err := l.db.Read().DatabaseRehearsals(t.Context(), id, 10)
		return err == nil && len(rows) == 3 && rows[0].State == store.RehearsalFailed && rows[0].Ended != 0
	})
}

// clock is a clock that the test sets.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// Every day there is a base backup, the archive is cleaned, and one restore is rehearsed at its hour; less
// often the archive is verified, and damage is reported and followed by a base backup.
func TestSchedule(t *testing.T) {
	l := newLab(t)
	l.trust()
	c := &clock{at: time.Now()}
	m := &machines{l: l}
	k := l.keep(func(cfg *backup.Config) {
		cfg.Now, cfg.Machines, cfg.ScrubShare = c.now, m, 1
		cfg.ScrubInterval = 80 * time.Hour
		cfg.Retention = archive.Retention{Period: 36 * time.Hour, Count: 1}
		cfg.RehearsalHour = c.at.UTC().Add(2 * time.Hour).Hour()
	})
	l.begin(k, false)
	var last time.Time
	next := func(what string) {
		t.Helper()
		last = l.waitFor(k, what, func(s backup.Status) bool { return s.Based.After(last) }).Based
	}
	next("the first base backup")
	c.add(2 * time.Hour)
	rehearsals := func(n int) {
		t.Helper()
		l.wait("a rehearsal", func() bool {
			rows, err := l.db.Read().DatabaseRehearsals(t.Context(), id, 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) > n || len(rows) > 0 && rows[0].State == store.RehearsalFailed {
				t.Fatalf("rehearsals %+v, want %d that passed", rows, n)
			}
			return len(rows) == n && rows[0].State == store.RehearsalPassed
		})
	}
	rehearsals(1)
	for day := range 3 {
		l.server.Exec("create table " + string(rune('a'+day)) + " (b int); select pg_switch_wal()")
		c.add(24 * time.Hour)
		next("the base backup of a day")
		rehearsals(2 + day)
	}
	l.wait("old base backups to go", func() bool { return bases(l) <= 3 })
	// A part of the newest base is damaged.
	damage(l)
	c.add(7 * time.Hour) // no base backup is due by then
	l.waitFor(k, "the verification", func(s backup.Status) bool { return strings.Contains(s.ScrubError, "damaged") })
	next("the base backup after the damage")
}

// bases counts the base backups in the object store.
func bases(l *lab) (n int) {
	l.Helper()
	err := l.memory.List(l.Context(), "db/"+id+"/base/", func(i blob.Info) error {
		if strings.HasSuffix(i.Key, "/meta") {
			n++
		}
		return nil
	})
	if err != nil {
		l.Fatal(err)
	}
	return n
}

// damage replaces a part of every base backup.
func damage(l *lab) {
	l.Helper()
	var keys []string
	err := l.memory.List(l.Context(), "db/"+id+"/base/", func(i blob.Info) error {
		if strings.Contains(i.Key, "/tar/") {
			keys = append(keys, i.Key)
		}
		return nil
	})
	for _, key := range keys {
		err = errors.Join(err, l.memory.Put(l.Context(), key, strings.NewReader("damaged"), 7))
	}
	if err != nil {
		l.Fatal(err)
	}
}
