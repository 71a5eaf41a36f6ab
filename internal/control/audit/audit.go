// Package audit is the audit log: it records callers, their actions and the objects and outcomes of these actions.
//
// Run writes entries in batches from a bounded queue, so that a call does not wait for the disk unless the queue is
// full. Run writes the rest of the queue before it returns; a killed program loses at most the last quarter of a
// second. The package does not know what actions mean.
//
// A flood does not fill the log. The rate of entries is bounded for each workspace, separately for calls that were
// refused, and for each address that shows no key; dropped entries are counted, and the log says how many there were.
// Entries end with an age, and if there are too many: the oldest of the workspaces that have the most.
//
// All methods may be called concurrently.
package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Entry is one call.
type Entry struct {
	ID        string // of an entry that was read
	At        time.Time
	Principal auth.Principal // zero: an unauthenticated caller
	Action    string         // such as "POST /v1/sandboxes"
	Target    string         // id of the object of the action, if any
	Outcome   string         // "ok", or the code of the error
	Remote    string         // address of the caller
	Request   string         // id of the request
	Took      time.Duration
}

// Bounds of the queue, of batches and of entries.
const (
	queueSize     = 4096
	batchSize     = 256
	flushInterval = 250 * time.Millisecond
	maxText       = 256 // bytes of each text of an entry
	maxList       = 1000
)

// Config bounds a log. The zero value bounds nothing.
type Config struct {
	Rate       int           // entries a second of one workspace; 0: unlimited
	Retention  time.Duration // age at which an entry is removed; 0: never
	MaxEntries int           // of all workspaces; 0: unlimited
}

// Log is an audit log. Make it with New.
type Log struct {
	cfg   Config
	db    *store.DB
	log   *slog.Logger
	queue chan store.Audit
	seq   atomic.Uint64
	gate  *gate
}

// New makes a log; it does not touch the store.
func New(cfg Config, db *store.DB, log *slog.Logger) (*Log, error) {
	if db == nil || log == nil {
		return nil, errors.New("audit: store and log are required")
	}
	return &Log{cfg: cfg, db: db, log: log, queue: make(chan store.Audit, queueSize), gate: newGate(cfg.Rate)}, nil
}

// Record adds an entry, unless its workspace or address has too many lately. It blocks only while the queue is full, at
// most until ctx ends.
func (l *Log) Record(ctx context.Context, e Entry) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if l.gate.admits(e) {
		l.enqueue(ctx, e)
	}
}

// RecordUse is Record for calls that repeat: entries that differ only in time are recorded once a minute.
func (l *Log) RecordUse(ctx context.Context, e Entry) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	if l.gate.isNew(e) {
		l.Record(ctx, e)
	}
}

// Dropped returns how many entries were dropped because there were too many.
func (l *Log) Dropped() uint64 { return l.gate.dropped.Load() }

func (l *Log) enqueue(ctx context.Context, e Entry) {
	at := store.Micros(e.At)
	row := store.Audit{
		ID:        fmt.Sprintf("%016x%06x%s", at, l.seq.Add(1)&0xffffff, strings.ToLower(rand.Text()[:6])),
		At:        at,
		Workspace: sanitize(string(e.Principal.Workspace)),
		Key:       sanitize(e.Principal.KeyPrefix),
		Action:    sanitize(e.Action),
		Target:    sanitize(e.Target),
		Outcome:   sanitize(e.Outcome),
		Remote:    sanitize(e.Remote),
		Request:   sanitize(e.Request),
		Took:      e.Took.Microseconds(),
	}
	select {
	case l.queue <- row: // even if the caller's context has ended
		return
	default:
	}
	select {
	case l.queue <- row:
	case <-ctx.Done():
		l.gate.dropped.Add(1)
		l.log.Error("audit entry lost: the queue is full", "action", row.Action, "workspace", row.Workspace)
	}
}

// sanitize returns a caller's text in a form that every store accepts.
func sanitize(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// Run writes entries until ctx ends, and then the rest of the queue. It also removes entries that are over the bounds.
func (l *Log) Run(ctx context.Context) error {
	flush, prune := time.NewTicker(flushInterval), time.NewTicker(pruneInterval)
	defer flush.Stop()
	defer prune.Stop()
	written := pruneAfter // prune at once: the bounds may be tighter than those of the last run
	for {
		if written >= pruneAfter {
			written = 0
			if err := l.prune(ctx); err != nil && ctx.Err() == nil {
				l.log.Error("audit entries not removed", "err", err)
			}
		}
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeoutCause(
				context.WithoutCancel(ctx),
				10*time.Second,
				errors.New("writing the last audit entries took too long"),
			)
			defer cancel()
			l.reportDropped(last, time.Time{})
			_, err := l.write(last)
			return err
		case <-prune.C:
			written = pruneAfter
		case <-flush.C:
		}
		l.reportDropped(ctx, time.Now().Add(-reportInterval))
		n, err := l.write(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Error("audit entries not written", "err", err)
		}
		written += n
	}
}

// Flush writes the entries of the queue, for a log that does not run.
func (l *Log) Flush(ctx context.Context) error {
	_, err := l.write(ctx)
	return err
}

// write writes all entries in the queue and returns their number.
func (l *Log) write(ctx context.Context) (n int, err error) {
	for {
		var rows []store.Audit
		for len(rows) < batchSize && len(l.queue) > 0 {
			rows = append(rows, <-l.queue)
		}
		if len(rows) == 0 {
			return n, nil
		}
		err := l.db.Write(
			ctx,
			"audit",
			func(ctx context.Context, tx *store.Tx) error { return tx.AppendAudit(ctx, rows) },
		)
		if err != nil {
			return n, fmt.Errorf("audit: %d entries are lost: %w", len(rows), err)
		}
		n += len(rows)
	}
}

// Query selects entries.
type Query struct {
	Since, Until time.Time // times of the oldest entry, and before the newest; zero: all
	Target       string    // "": all
	Limit        int       // 0: 100; at most 1000
	After        string    // id of the last entry of the page before; "": the first page
	OldestFirst  bool
	All          bool // of all workspaces, and of callers without a valid key; operators only
}

// List returns the entries of the caller's workspace, newest first unless the query says otherwise.
//
// The caller must be an admin, and an operator for the entries of all workspaces.
func (l *Log) List(ctx context.Context, p auth.Principal, q Query) ([]Entry, error) {
	if p.Workspace == "" || !p.Admin {
		return nil, api.Errorf(api.Forbidden, "only an admin key can read the audit log")
	}
	if q.All && !p.Operator {
		return nil, api.Errorf(api.Forbidden, "all: only an operator's key can read the entries of all workspaces").
			With("field", "all")
	}
	if q.Limit < 0 || q.Limit > maxList {
		return nil, api.Errorf(api.Invalid, "limit: %d is out of range: use 1 to %d", q.Limit, maxList).
			With("field", "limit")
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	ask := store.AuditQuery{
		Workspace: string(p.Workspace), Target: sanitize(q.Target), Since: store.Micros(q.Since),
		Until: store.Micros(q.Until), Limit: q.Limit, After: sanitize(q.After), OldestFirst: q.OldestFirst,
	}
	if q.All {
		ask.Workspace = ""
	}
	rows, err := l.db.Read().Audits(ctx, ask)
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]Entry, 0, len(rows))
	for _, r := range rows {
		out = append(out, Entry{
			ID:        r.ID,
			At:        store.Time(r.At),
			Principal: auth.Principal{Workspace: api.Workspace(r.Workspace), KeyPrefix: r.Key},
			Action:    r.Action,
			Target:    r.Target,
			Outcome:   r.Outcome,
			Remote:    r.Remote,
			Request:   r.Request,
			Took:      time.Duration(r.Took) * time.Microsecond,
		})
	}
	return out, nil
}
