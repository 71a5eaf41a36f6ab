package build

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Bounds of a build's log.
const (
	maxLine     = 2000     // bytes of one line; longer lines are split
	maxLogBytes = 16 << 20 // bytes of the log of one build
	logPage     = 500      // lines read or written in one statement
	flushEvery  = 300 * time.Millisecond
)

// The levels of log lines.
const (
	levelInfo  = "info"
	levelWarn  = "warn"
	levelError = "error"
)

// buildLog is the log of a running build. Followers see a line at once; it is written to the store a moment later,
// together with others.
type buildLog struct {
	db    *store.DB
	build string
	// written, if not nil, is called in the transaction that writes lines, with the number of the last one.
	written func(ctx context.Context, tx *store.Tx, last int64) error

	writing sync.Mutex // held while lines are written, and taken before mu

	mu        sync.Mutex
	last      int64             // number of the last line
	unwritten []store.BuildLine // lines that are not in the store yet
	bytes     int
	changed   chan struct{} // closed and replaced when a line is added
	closed    bool
}

func openLog(ctx context.Context, db *store.DB, build string) (*buildLog, error) {
	last, err := db.Read().LastBuildLine(ctx, build)
	if err != nil {
		return nil, err
	}
	return &buildLog{db: db, build: build, last: last, changed: make(chan struct{})}, nil
}

// append adds a line, split if it is too long.
func (j *buildLog) append(level, step, text string) {
	text = strings.ToValidUTF8(strings.TrimRight(text, "\r\n"), "?")
	j.mu.Lock()
	defer j.mu.Unlock()
	for {
		line := text[:min(len(text), maxLine)]
		text = text[len(line):]
		j.appendLine(level, step, line)
		if text == "" {
			break
		}
	}
	close(j.changed)
	j.changed = make(chan struct{})
}

// appendLine numbers and adds one line; j.mu is held. A full log takes only warnings and errors.
func (j *buildLog) appendLine(level, step, line string) {
	full := j.bytes > maxLogBytes
	if full && level == levelInfo {
		return
	}
	j.bytes += len(line) + 64
	if !full && j.bytes > maxLogBytes {
		level, line = levelWarn, fmt.Sprintf("the log is full at %d MiB: further output is left out", maxLogBytes>>20)
	}
	j.last++
	j.unwritten = append(
		j.unwritten,
		store.BuildLine{
			Build: j.build,
			Seq:   j.last,
			At:    store.Micros(time.Now()),
			Level: level,
			Step:  step,
			Line:  strings.ReplaceAll(line, "\x00", ""),
		},
	)
}

// flush writes the unwritten lines. Concurrent calls write each line once.
func (j *buildLog) flush(ctx context.Context) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	j.mu.Lock()
	batch := j.unwritten[:min(len(j.unwritten), logPage)]
	j.mu.Unlock()
	for len(batch) > 0 {
		err := j.db.Write(ctx, "build log", func(ctx context.Context, tx *store.Tx) error {
			if err := tx.AppendBuildLines(ctx, batch); err != nil || j.written == nil {
				return err
			}
			return j.written(ctx, tx, batch[len(batch)-1].Seq)
		})
		if err != nil {
			return err
		}
		j.mu.Lock()
		j.unwritten = j.unwritten[len(batch):]
		batch = j.unwritten[:min(len(j.unwritten), logPage)]
		j.mu.Unlock()
	}
	return nil
}

// flushPeriodically calls flush until ctx ends.
func (j *buildLog) flushPeriodically(ctx context.Context) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = j.flush(ctx) // the next call repeats it, and the last one at the end of the build reports the error
		}
	}
}

// close wakes the followers for the last time.
func (j *buildLog) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
	close(j.changed)
	j.changed = make(chan struct{})
}

// pending returns the unwritten lines with numbers above after, a channel that is closed when the log changes, and
// whether the log is closed.
func (j *buildLog) pending(after int64) (lines []store.BuildLine, changed <-chan struct{}, closed bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.unwritten {
		if l.Seq > after {
			lines = append(lines, l)
		}
	}
	return lines, j.changed, j.closed
}

// Logs calls yield with the lines of a build whose numbers are above after, in order. If follow is set, it returns when
// the build has ended.
func (s *Service) Logs(
	ctx context.Context,
	p auth.Principal,
	id api.BuildID,
	after int64,
	follow bool,
	yield func(api.BuildLine) error,
) error {
	if _, err := s.find(ctx, p, id); err != nil {
		return err
	}
	for {
		// The lines in memory are read first: a line that moves to the store meanwhile is found there, and a line
		// that is found in both places is yielded once because of its number.
		s.mu.Lock()
		a, begun := s.active[string(id)], s.activated
		s.mu.Unlock()
		var fresh []store.BuildLine
		var changed <-chan struct{}
		closed, limit := true, activePoll
		if a != nil {
			fresh, changed, closed = a.log.pending(after)
		}
		row, err := s.db.Read().Build(ctx, string(id))
		if err != nil {
			return api.AsError(err)
		}
		if err := s.yieldStored(ctx, string(id), &after, yield); err != nil {
			return err
		}
		if err := yieldLines(fresh, &after, yield); err != nil {
			return err
		}
		switch {
		case !follow || row.State == stateDone || row.State == stateFailed:
			return nil
		case closed: // queued, between two attempts, or another process has it
			changed, limit = begun, queuedPoll
		}
		if err := wait(ctx, changed, limit); err != nil {
			return err
		}
	}
}

// The poll intervals of Logs for builds that run in this process and for those that do not.
const (
	activePoll = 5 * time.Second
	queuedPoll = 200 * time.Millisecond
)

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

func (s *Service) yieldStored(ctx context.Context, id string, after *int64, yield func(api.BuildLine) error) error {
	for {
		rows, err := s.db.Read().BuildLines(ctx, id, *after, logPage)
		if err != nil {
			return api.AsError(err)
		}
		if err := yieldLines(rows, after, yield); err != nil || len(rows) < logPage {
			return err
		}
	}
}

// yieldLines yields the lines above *after and advances it.
func yieldLines(lines []store.BuildLine, after *int64, yield func(api.BuildLine) error) error {
	for _, l := range lines {
		if l.Seq != *after+1 && l.Seq <= *after {
			continue
		}
		if err := yield(api.BuildLine{Seq: l.Seq, Time: store.Time(l.At), Level: l.Level, Step: l.Step,
			Line: l.Line}); err != nil {
			return err
		}
		*after = l.Seq
	}
	return nil
}
