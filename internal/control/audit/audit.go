// Package audit is the audit log: it records callers, their actions and the objects and outcomes of these actions.
//
// Run writes entries in batches from a bounded queue, so that a call does not wait for the disk unless the queue is
// full. Run writes the rest of the queue before it returns; a killed program loses at most the last quarter of a
// second. The package does not know what actions mean.
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

// Log is an audit log. Make it with New.
type Log struct {
	db    *store.DB
	log   *slog.Logger
	queue chan store.Audit
	seq   atomic.Uint64
}

// New makes a log; it does not touch the store.
func New(db *store.DB, log *slog.Logger) (*Log, error) {
	if db == nil || log == nil {
		return nil, errors.New("audit: store and log are required")
	}
	return &Log{db: db, log: log, queue: make(chan store.Audit, queueSize)}, nil
}

// Record adds an entry. It blocks only while the queue is full, at most until ctx ends.
func (l *Log) Record(ctx context.Context, e Entry) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	at := store.Micros(e.At)
	row := store.Audit{
		ID: fmt.Sprintf("%016x%06x%s", at, l.seq.Add(1)&0xffffff, strings.ToLower(rand.Text()[:6])),
		At: at,
		Workspace: sanitize(
			string(e.Principal.Workspace),
		),
		Key:     sanitize(e.Principal.KeyPrefix),
		Action:  sanitize(e.Action),
		Target:  sanitize(e.Target),
		Outcome: sanitize(e.Outcome),
		Remote:  sanitize(e.Remote),
		Request: sanitize(e.Request),
		Took:    e.Took.Microseconds(),
	}
	select {
	case l.queue <- row: // even if the caller's context has ended
		return
	default:
	}
	select {
	case l.queue <- row:
	case <-ctx.Done():
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

// Run writes entries until ctx ends, and then the rest of the queue.
func (l *Log) Run(ctx context.Context) error {
	t := time.NewTicker(flushInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeoutCause(
				context.WithoutCancel(ctx),
				10*time.Second,
				errors.New("writing the last audit entries took too long"),
			)
			defer cancel()
			return l.write(last)
		case <-t.C:
		}
		if err := l.write(ctx); err != nil && ctx.Err() == nil {
			l.log.Error("audit entries not written", "err", err)
		}
	}
}

// write writes all entries in the queue.
func (l *Log) write(ctx context.Context) error {
	for {
		var rows []store.Audit
		for len(rows) < batchSize && len(l.queue) > 0 {
			rows = append(rows, <-l.queue)
		}
		if len(rows) == 0 {
			return nil
		}
		err := l.db.Write(
			ctx,
			"audit",
			func(ctx context.Context, tx *store.Tx) error { return tx.AppendAudit(ctx, rows) },
		)
		if err != nil {
			return fmt.Errorf("audit: %d entries are lost: %w", len(rows), err)
		}
	}
}

// Query selects entries.
type Query struct {
	Since  time.Time // time of the oldest entry
	Target string    // "": all
	Limit  int       // 0: 100; at most 1000
}

// List returns the entries of the caller's workspace, newest first. The caller must be an admin.
func (l *Log) List(ctx context.Context, p auth.Principal, q Query) ([]Entry, error) {
	if p.Workspace == "" || !p.Admin {
		return nil, api.Errorf(api.Forbidden, "only an admin key can read the audit log")
	}
	if q.Limit < 0 || q.Limit > maxList {
		return nil, api.Errorf(api.Invalid, "limit: %d is out of range: use 1 to %d", q.Limit, maxList).
			With("field", "limit")
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	rows, err := l.db.Read().
		Audits(ctx, store.AuditQuery{Workspace: string(p.Workspace), Target: sanitize(q.Target),
			Since: store.Micros(q.Since), Limit: q.Limit})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]Entry, 0, len(rows))
	for _, r := range rows {
		out = append(
			out,
			Entry{
				At:        store.Time(r.At),
				Principal: auth.Principal{Workspace: api.Workspace(r.Workspace), KeyPrefix: r.Key},
				Action:    r.Action,
				Target:    r.Target,
				Outcome:   r.Outcome,
				Remote:    r.Remote,
				Request:   r.Request,
				Took:      time.Duration(r.Took) * time.Microsecond,
			},
		)
	}
	return out, nil
}
