// Package applog keeps the logs of apps: those of their deployments and the output of their programs.
//
// A log is the lines of a key, numbered from 1. Followers see a line at once; it is written to the store a moment
// later, together with others. Values of secrets are masked before a line is kept anywhere.
package applog

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Bounds of logs.
const (
	MaxLine    = 2000     // bytes of one line; longer lines are split
	MaxBytes   = 16 << 20 // bytes of a log that is not trimmed; then it takes only warnings and errors
	page       = 500      // lines read or written in one statement
	flushEvery = 300 * time.Millisecond
	minMasked  = 4 // bytes of a value that is masked; shorter ones would mask everything
)

// The levels of lines.
const (
	Info  = "info"
	Warn  = "warn"
	Error = "error"
)

// Logs are the logs that this process writes, and the way to read all of them. Make it with New.
type Logs struct {
	db *store.DB

	mu     sync.Mutex
	active map[string]*Log
	opened chan struct{} // closed and replaced when a log is added to active
}

// New returns the logs of a store.
func New(db *store.DB) *Logs {
	return &Logs{db: db, active: map[string]*Log{}, opened: make(chan struct{})}
}

// Options of a log.
type Options struct {
	Masked []string   // values that are masked
	Keep   int64      // newest lines that are kept; 0: all, up to MaxBytes
	Rate   rate.Limit // lines per second from which on lines are left out; 0: no limit
}

// Log is a log that is being written. Close it.
type Log struct {
	logs *Logs
	key  string
	opt  Options
	rate *rate.Limiter
	mask *strings.Replacer

	writing sync.Mutex // held while lines are written, and taken before mu

	mu        sync.Mutex
	last      int64 // number of the last line
	trimmed   int64 // lines up to this number were removed
	unwritten []store.AppLogLine
	bytes     int
	left      int           // lines that were left out since the last one
	changed   chan struct{} // closed and replaced when a line is added
	closed    bool

	stop chan struct{}
	done sync.WaitGroup
}

// Open opens the log of a key for writing. A log has one writer.
func (l *Logs) Open(ctx context.Context, key string, opt Options) (*Log, error) {
	last, err := l.db.Read().LastAppLog(ctx, key)
	if err != nil {
		return nil, err
	}
	g := &Log{
		logs: l, key: key, opt: opt, last: last, mask: replacer(opt.Masked), changed: make(chan struct{}),
		stop: make(chan struct{}),
	}
	if opt.Rate > 0 {
		g.rate = rate.NewLimiter(opt.Rate, int(10*opt.Rate))
	}
	l.mu.Lock()
	l.active[key] = g
	close(l.opened)
	l.opened = make(chan struct{})
	l.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	g.done.Go(func() { g.flushPeriodically(ctx) })
	return g, nil
}

// replacer masks values, and the long lines of values that have several.
func replacer(values []string) *strings.Replacer {
	var all []string
	for _, v := range values {
		all = append(all, v)
		if lines := strings.Split(v, "\n"); len(lines) > 1 {
			all = append(all, lines...)
		}
	}
	// At one position the first value that matches is replaced: longer ones come first.
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	var pairs []string
	for _, v := range slices.Compact(all) {
		if len(v) >= minMasked {
			pairs = append(pairs, v, api.MaskedValue)
		}
	}
	return strings.NewReplacer(pairs...)
}

// Append adds a line, split if it is too long.
func (g *Log) Append(level, step, text string) {
	text = strings.ToValidUTF8(strings.TrimRight(g.mask.Replace(text), "\r\n"), "?")
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	for {
		line := text[:min(len(text), MaxLine)]
		text = text[len(line):]
		g.appendLine(level, step, strings.ToValidUTF8(line, "?"))
		if text == "" {
			break
		}
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// appendLine numbers and adds one line; g.mu is held.
func (g *Log) appendLine(level, step, line string) {
	if g.rate != nil {
		if !g.rate.Allow() {
			g.left++
			return
		}
		if g.left > 0 {
			left := g.left
			g.left = 0
			g.add(Warn, step, fmt.Sprintf("%d lines were left out: the program prints too fast", left))
		}
	}
	full := g.opt.Keep == 0 && g.bytes > MaxBytes
	if full && level == Info {
		return
	}
	g.bytes += len(line) + 64
	if g.opt.Keep == 0 && !full && g.bytes > MaxBytes {
		level, line = Warn, fmt.Sprintf("the log is full at %d MiB: further output is left out", MaxBytes>>20)
	}
	g.add(level, step, line)
}

func (g *Log) add(level, step, line string) {
	g.last++
	g.unwritten = append(g.unwritten, store.AppLogLine{
		Deployment: g.key, Number: g.last, Created: store.Micros(time.Now()), Level: level, Step: step,
		Line: strings.ReplaceAll(line, "\x00", ""),
	})
}

// Flush writes the lines that are not written. Concurrent calls write each line once.
func (g *Log) Flush(ctx context.Context) error {
	g.writing.Lock()
	defer g.writing.Unlock()
	for {
		g.mu.Lock()
		batch := g.unwritten[:min(len(g.unwritten), page)]
		trimmed := g.trimmed
		g.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		trim := int64(0)
		if old := batch[len(batch)-1].Number - g.opt.Keep; g.opt.Keep > 0 && old-trimmed >= page/2 {
			trim = old
		}
		err := g.logs.db.Write(ctx, "app log", func(ctx context.Context, tx *store.Tx) error {
			if err := tx.AppendAppLog(ctx, batch); err != nil || trim == 0 {
				return err
			}
			return tx.TrimAppLog(ctx, g.key, trim)
		})
		if err != nil {
			return err
		}
		g.mu.Lock()
		g.unwritten = g.unwritten[len(batch):]
		g.trimmed = max(g.trimmed, trim)
		g.mu.Unlock()
	}
}

func (g *Log) flushPeriodically(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-g.stop:
			return
		case <-tick.C:
			_ = g.Flush(ctx) // the next call repeats it, and Close reports the error
		}
	}
}

// Close writes what is left and ends the log for its followers.
func (g *Log) Close(ctx context.Context) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	g.mu.Unlock()
	close(g.stop)
	g.done.Wait()
	err := g.Flush(ctx)
	g.logs.mu.Lock()
	if g.logs.active[g.key] == g {
		delete(g.logs.active, g.key)
	}
	g.logs.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
	return err
}

// pending returns the lines above after that are not written, and a channel that is closed when the log changes.
func (g *Log) pending(after int64) (lines []store.AppLogLine, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range g.unwritten {
		if l.Number > after {
			lines = append(lines, l)
		}
	}
	return lines, g.changed
}

// The intervals at which Read looks at logs that this process writes, and at those that it does not.
const (
	activePoll = 5 * time.Second
	otherPoll  = 300 * time.Millisecond
)

// Read calls yield with the lines of a key above the number after, in order. If ended is not nil, it follows the log
// until ended reports true and all lines were yielded.
func (l *Logs) Read(
	ctx context.Context,
	key string,
	after int64,
	ended func(context.Context) (bool, error),
	yield func(store.AppLogLine) error,
) error {
	for {
		done := true
		if ended != nil { // asked first: what was added before the end is found below
			var err error
			if done, err = ended(ctx); err != nil {
				return err
			}
		}
		// The lines in memory are read before the store: one that moves to the store meanwhile is found there, and one
		// that is found in both places is yielded once because of its number.
		l.mu.Lock()
		g, changed, limit := l.active[key], (<-chan struct{})(l.opened), otherPoll
		l.mu.Unlock()
		var fresh []store.AppLogLine
		if g != nil {
			fresh, changed = g.pending(after)
			limit = activePoll
		}
		if err := l.stored(ctx, key, &after, yield); err != nil {
			return err
		}
		if err := each(fresh, &after, yield); err != nil || done {
			return err
		}
		if err := wait(ctx, changed, limit); err != nil {
			return err
		}
	}
}

// stored yields the lines of the store above *after.
func (l *Logs) stored(ctx context.Context, key string, after *int64, yield func(store.AppLogLine) error) error {
	for {
		rows, err := l.db.Read().AppLog(ctx, key, *after, page)
		if err != nil {
			return err
		}
		if err := each(rows, after, yield); err != nil || len(rows) < page {
			return err
		}
	}
}

// each yields the lines above *after and advances it.
func each(lines []store.AppLogLine, after *int64, yield func(store.AppLogLine) error) error {
	for _, l := range lines {
		if l.Number <= *after {
			continue
		}
		if err := yield(l); err != nil {
			return err
		}
		*after = l.Number
	}
	return nil
}

// Tail returns the newest lines of a key, oldest first.
func (l *Logs) Tail(ctx context.Context, key string, n int64) (lines []store.AppLogLine, err error) {
	last, err := l.db.Read().LastAppLog(ctx, key)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	g := l.active[key]
	l.mu.Unlock()
	if g != nil {
		g.mu.Lock()
		last = max(last, g.last)
		g.mu.Unlock()
	}
	err = l.Read(ctx, key, max(0, last-n), nil, func(line store.AppLogLine) error {
		lines = append(lines, line)
		return nil
	})
	return lines, err
}

func wait(ctx context.Context, changed <-chan struct{}, limit time.Duration) error {
	pause := time.NewTimer(limit)
	defer pause.Stop()
	select {
	case <-changed:
		return nil
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
