// Package backup keeps the backups of the databases of this host.
//
// A Keeper runs one relay (package walrelay) for every database whose server runs. It takes base backups every day, on
// demand, and at once after a hole in the log; removes what the retention does not need; verifies what is stored; and
// restores moments. It owns the spool directories, the archives, the replication slots and the settings of the server
// that belong to replication. It does not know where servers run: who makes one calls Begin, and End before it goes.
//
// # Durability
//
// With Primary.Synchronous the server confirms a commit when it is in the spool on this host's disk. Nothing takes that
// back but Begin without it: while the relay is away, commits wait.
//
// # Crashes
//
// A kill at any moment leaves spools from which Begin continues; when what is due next is in the store.
package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/wal"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/lib/keyring"
)

// maxBases is the number of base backups that are taken at once.
const maxBases = 2

// ErrNotRunning means that no relay runs for the database.
var ErrNotRunning = errors.New("the backups of the database are not running")

var errStopping = errors.New("the keeper of backups is stopping")

// Config of a Keeper. Store, Blobs, Ring, Dir and Log are required.
type Config struct {
	Store *store.DB
	Blobs blob.Store // of all archives
	Ring  *keyring.Keyring
	Dir   string // of the spools
	Log   *slog.Logger

	// Retention says what can be restored; default 7 days and 2 base backups.
	Retention archive.Retention
	// SpoolBytes is the limit of each spool; default 1 GiB.
	SpoolBytes int64
	// SlotMiB is how much log a server keeps for a relay that is away; default 2048.
	SlotMiB int
	// BaseInterval is the time between base backups and CollectInterval between removals, both a day by default;
	// ScrubInterval between verifications, a week by default. Retry is the time after a failure, 15 min by default.
	BaseInterval, CollectInterval, ScrubInterval, Retry time.Duration
	// ScrubShare is the part of an archive that a verification reads; default 0.1.
	ScrubShare float64
	// Interval is the time between looks at what is due; default 10 s.
	Interval time.Duration
	Now      func() time.Time // default time.Now

	// Machines makes servers for rehearsals; without it there are none.
	Machines Machines
	// RehearsalHour is the hour of the day, UTC, of the nightly rehearsal.
	RehearsalHour int

	// Partial is as in walrelay.Config; for tests.
	Partial time.Duration
}

func (c *Config) fill() error {
	if c.Store == nil || c.Blobs == nil || c.Ring == nil || c.Dir == "" || c.Log == nil {
		return errors.New("backup: want a store, an object store and its keyring, a directory and a log")
	}
	if c.Retention == (archive.Retention{}) {
		c.Retention = archive.Retention{Period: 7 * 24 * time.Hour, Count: 2}
	}
	if c.SlotMiB == 0 {
		c.SlotMiB = 2048
	}
	if c.ScrubShare == 0 {
		c.ScrubShare = 0.1
	}
	for _, d := range []struct {
		field    *time.Duration
		standard time.Duration
	}{
		{&c.BaseInterval, 24 * time.Hour}, {&c.CollectInterval, 24 * time.Hour}, {&c.ScrubInterval, 7 * 24 * time.Hour},
		{&c.Retry, 15 * time.Minute}, {&c.Interval, 10 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.standard
		}
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Primary is the server of a database that takes writes.
type Primary struct {
	Database string // id
	// Synchronous makes commits wait until the relay has them on its disk.
	Synchronous bool
	// Variant and Collation identify the build of the server and the version of its collations.
	Variant, Collation string
	// Dial connects to the socket of the server that runs now.
	Dial func(ctx context.Context) (net.Conn, error)
	// User is a superuser, default postgres. Without Password the server must not ask for one.
	User, Password string
}

func (p Primary) replication() walrelay.Server {
	return walrelay.Server{Dial: p.Dial, User: p.user(), Password: p.Password}
}

func (p Primary) user() string {
	if p.User == "" {
		return "postgres"
	}
	return p.User
}

// Keeper keeps the backups of databases. Make it with New; all methods may be called concurrently.
type Keeper struct {
	cfg   Config
	locks keyed.Locks         // of databases: who starts, stops or opens a spool
	bases *semaphore.Weighted // of base backups
	wake  chan struct{}       // something may be due; capacity 1

	ordered chan store.DatabaseRehearsal // rehearsals that Run is to make; capacity maxOrdered

	mu         sync.Mutex
	closed     bool               // guarded by mu
	members    map[string]*member // with a running relay; guarded by mu
	rehearsing map[string]bool    // databases whose ordered rehearsals have not ended; guarded by mu
}

// New returns a keeper, which works while Run does.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Keeper{
		cfg: cfg, bases: semaphore.NewWeighted(maxBases), wake: make(chan struct{}, 1), members: map[string]*member{},
		ordered: make(chan store.DatabaseRehearsal, maxOrdered), rehearsing: map[string]bool{},
	}, nil
}

// Run takes base backups and maintains the archives until ctx ends. Then it stops all relays, and returns when
// everything has ended.
func (k *Keeper) Run(ctx context.Context) error {
	defer k.stopAll()
	if err := k.endLostRehearsals(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	var loops errgroup.Group
	loops.Go(func() error { k.baseLoop(ctx); return nil })
	loops.Go(func() error { k.maintenanceLoop(ctx); return nil })
	loops.Go(func() error { k.orderLoop(ctx); return nil })
	return loops.Wait()
}

// stopAll stops all relays at once.
func (k *Keeper) stopAll() {
	k.mu.Lock()
	k.closed = true
	all := k.members
	k.members = map[string]*member{}
	k.mu.Unlock()
	var group sync.WaitGroup
	for _, m := range all {
		group.Go(m.end)
	}
	group.Wait()
}

// member returns the running relay of a database, nil if there is none.
func (k *Keeper) member(id string) *member {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.members[id]
}

// archive opens the archive of a database with the fencing number that this node has.
func (k *Keeper) archive(ctx context.Context, id string) (*archive.Archive, error) {
	row, err := k.cfg.Store.Read().DatabaseBackups(ctx, id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	return archive.New(k.cfg.Blobs, k.cfg.Ring, id, archive.Options{Fence: row.Fence})
}

func (k *Keeper) spool(id string) string { return filepath.Join(k.cfg.Dir, id) }

// SlotName returns the name of the replication slot of a database's relay. Names of other slots of its server that
// belong to it begin with it; those of no other database do.
func SlotName(id string) string { return slotPrefix + id }

const slotPrefix = "pandastack_"

// Begin starts the relay of a database whose server runs. It makes its slot, removes the slots that a copy of another
// database's server has inherited, and sets or resets what makes commits wait. In synchronous mode it returns once
// the relay has all of the log. It may be repeated, also with another mode. Its error is ErrFenced for a database that
// another node has adopted.
func (k *Keeper) Begin(ctx context.Context, p Primary) error {
	if err := errors.Join(archive.CheckID(p.Database), walrelay.CheckSlotName(SlotName(p.Database))); err != nil {
		return err
	}
	op, release, err := k.locks.Acquire(ctx, p.Database)
	if err != nil {
		return err
	}
	defer release()
	if err := k.Holds(op, p.Database); err != nil {
		return err
	}
	m := k.member(p.Database)
	if m != nil && m.primary.Synchronous != p.Synchronous {
		k.forget(m)
		m = nil
	}
	if err := prepare(op, p, k.cfg.SlotMiB); err != nil {
		return fmt.Errorf("prepare the server of %s for its backups: %w", p.Database, err)
	}
	if m == nil {
		if m, err = k.start(op, p); err != nil {
			return err
		}
	}
	if !p.Synchronous {
		return nil
	}
	status, err := m.relay.Wait(op, func(s walrelay.Status) bool {
		return s.State == walrelay.Streaming || s.State == walrelay.Diverged || s.State == walrelay.Stopped
	})
	switch {
	case err != nil:
		return fmt.Errorf("the relay of %s has not begun, and commits wait for it: %w (%s)", p.Database, err,
			status.ConnectError)
	case status.State != walrelay.Streaming:
		return fmt.Errorf("the relay of %s is %s, and commits wait for it: %s", p.Database, status.State,
			status.ConnectError)
	}
	return nil
}

// start makes a member and starts its relay.
func (k *Keeper) start(ctx context.Context, p Primary) (*member, error) {
	now := k.cfg.Now().UnixMicro()
	err := k.cfg.Store.Write(ctx, "begin database backups", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertDatabaseBackups(ctx, &store.DatabaseBackups{
			Database: p.Database, BaseDue: now, CollectDue: now + k.cfg.CollectInterval.Microseconds(),
			ScrubDue: now + k.cfg.ScrubInterval.Microseconds(),
		})
	})
	if err != nil {
		return nil, err
	}
	m, err := k.newMember(ctx, p)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errStopping
	}
	k.members[p.Database] = m
	m.run(k.cfg.Log)
	k.nudge()
	return m, nil
}

// nudge wakes the loop of base backups.
func (k *Keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// forget ends a member.
func (k *Keeper) forget(m *member) {
	k.mu.Lock()
	if k.members[m.primary.Database] == m {
		delete(k.members, m.primary.Database)
	}
	k.mu.Unlock()
	m.end()
}

// Flush waits until everything that the server has confirmed is in the archive. Before a suspend its success means that
// nothing is missing while the database sleeps.
func (k *Keeper) Flush(ctx context.Context, id string) error {
	m := k.member(id)
	if m == nil {
		return fmt.Errorf("database %s: %w", id, ErrNotRunning)
	}
	_, err := m.flush(ctx)
	return err
}

// End stops the relay of a database, and a base backup that is under way. Without a relay it does nothing.
func (k *Keeper) End(ctx context.Context, id string) error {
	_, release, err := k.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if m := k.member(id); m != nil {
		k.forget(m)
	}
	return nil
}

// Remove ends the backups of a database and removes them: the spool, the rows, and the archive unless another node has
// adopted the database. It may be repeated.
func (k *Keeper) Remove(ctx context.Context, id string) error {
	return k.remove(ctx, id, func(ctx context.Context) error {
		a, err := k.archive(ctx, id)
		if err == nil {
			err = a.RemoveAll(ctx)
		}
		if errors.Is(err, ErrFenced) { // it is another node's
			return nil
		}
		return err
	})
}

// Abandon is Remove of what this node has; the archive stays.
func (k *Keeper) Abandon(ctx context.Context, id string) error {
	return k.remove(ctx, id, func(context.Context) error { return nil })
}

func (k *Keeper) remove(ctx context.Context, id string, clear func(context.Context) error) error {
	if err := archive.CheckID(id); err != nil {
		return err
	}
	op, release, err := k.locks.Acquire(ctx, id)
	if err != nil {
		return err
	}
	defer release()
	if m := k.member(id); m != nil {
		k.forget(m)
	}
	if err := os.RemoveAll(k.spool(id)); err != nil {
		return err
	}
	if err := clear(op); err != nil {
		return err
	}
	return k.cfg.Store.Write(op, "remove database backups", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeleteDatabaseBackups(ctx, id)
	})
}

// Status is the state of the backups of a database.
type Status struct {
	Running bool            `json:"running"` // a relay receives the log
	Relay   walrelay.Status `json:"relay"`

	Based     time.Time `json:"based,omitzero"` // end of the last base backup
	BaseDue   time.Time `json:"base_due"`
	BaseError string    `json:"base_error,omitempty"`

	Scrubbed   time.Time `json:"scrubbed,omitzero"`
	ScrubError string    `json:"scrub_error,omitempty"` // what the last verification found
}

// Status returns the state of the backups of a database; ErrNotRunning if there never were any.
func (k *Keeper) Status(ctx context.Context, id string) (Status, error) {
	row, err := k.cfg.Store.Read().DatabaseBackups(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return Status{}, fmt.Errorf("database %s: %w", id, ErrNotRunning)
	}
	if err != nil {
		return Status{}, err
	}
	s := Status{
		Based: timeOf(row.Based), BaseDue: timeOf(row.BaseDue), BaseError: row.BaseError,
		Scrubbed: timeOf(row.Scrubbed), ScrubError: row.ScrubError,
	}
	if m := k.member(id); m != nil {
		s.Running, s.Relay = true, m.relay.Status()
	}
	return s, nil
}

// timeOf returns the time of microseconds, the zero time for 0.
func timeOf(micro int64) time.Time {
	if micro == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micro).UTC()
}

// Contents is what the archive of a database has.
type Contents struct {
	Bases   []archive.Base   // oldest first
	Windows []archive.Window // ranges that can be restored, oldest first
	Stored  int64            // bytes in the object store
}

// Contents reads what the archive of a database has. With an error it is what could be read.
func (k *Keeper) Contents(ctx context.Context, id string) (Contents, error) {
	a, err := k.archive(ctx, id)
	if err != nil {
		return Contents{}, err
	}
	c, err := a.Catalog(ctx)
	if err != nil {
		return Contents{}, err
	}
	out := Contents{Bases: c.Bases, Stored: c.Stored}
	if out.Windows, err = c.Windows(0); err != nil {
		return out, err
	}
	return out, a.FillTimes(ctx, out.Windows)
}

// position returns the end of the server's log, and the server's time before it was read: what was confirmed by then is
// before the end.
func (p Primary) position(ctx context.Context) (wal.LSN, time.Time, error) {
	conn, err := p.connect(ctx, "postgres")
	if err != nil {
		return 0, time.Time{}, err
	}
	defer conn.close(ctx)
	var at time.Time
	var text string
	err = conn.QueryRow(ctx, "select clock_timestamp(), pg_current_wal_flush_lsn()::text").Scan(&at, &text)
	if err != nil {
		return 0, time.Time{}, err
	}
	lsn, err := wal.ParseLSN(text)
	return lsn, at, err
}
