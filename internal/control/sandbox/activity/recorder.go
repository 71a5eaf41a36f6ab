package activity

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/control/store"
)

// Limits of one sample of all sandboxes that were used; what it finds is optional.
const (
	sampleTimeout   = 2 * time.Second
	maxUsageSamples = 8 // sandboxes whose usage is measured, the most expensive part; which ones differs every time
)

// Source is what a Recorder needs of the sandboxes.
type Source interface {
	// IDs returns the sandboxes; with running, only those that run or are paused.
	IDs(ctx context.Context, running bool) ([]string, error)
	// Usage measures a sandbox and returns JSON; "" if that is not possible.
	Usage(ctx context.Context, id string) string
	// Console returns the output of a sandbox; "" if the host cannot give it.
	Console(ctx context.Context, id string) string
}

// Recorder writes when sandboxes were used last, and what their machines use, print and run. All fields are required.
//
// So it is known of a sandbox whose machine, host or control plane ends without notice. Load, Run and Finish are called
// one after the other.
type Recorder struct {
	Source   Source
	Activity *Tracker
	Store    *store.DB
	Interval time.Duration // between writes
	Log      *slog.Logger
}

// Load counts the start of the control plane as use of every sandbox.
//
// Nothing could be used while it was down. Load also reads what an earlier control plane knew of processes.
func (u *Recorder) Load(ctx context.Context) {
	all, err := u.Source.IDs(ctx, false)
	if err != nil {
		u.Log.Warn("reading sandboxes failed", "err", err)
		return
	}
	for _, id := range all {
		u.Activity.Touch(id)
	}
	if err := u.loadProcesses(ctx); err != nil {
		u.Log.Warn("reading what was last seen of processes failed", "err", err)
	}
}

func (u *Recorder) loadProcesses(ctx context.Context) error {
	rows, err := u.Store.Read().LastProcesses(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		var list []ProcessEnd
		if err := json.Unmarshal([]byte(r.Processes), &list); err != nil {
			return err
		}
		u.Activity.Load(r.ID, list)
	}
	return nil
}

// Run writes at every interval until ctx ends.
func (u *Recorder) Run(ctx context.Context) error {
	return Periodically(ctx, u.Interval, u.Log, "writing last uses", u.flush)
}

// Finish writes once more before this control plane ends, since machines may end with it.
func (u *Recorder) Finish(ctx context.Context) {
	if err := errors.Join(u.flush(ctx), u.finalSample(ctx)); err != nil {
		u.Log.Warn("writing last uses failed", "err", err)
	}
}

// flush writes the uses that are not in the store, with a sample of the sandboxes that were used.
func (u *Recorder) flush(ctx context.Context) error {
	used := u.Activity.DrainDirty()
	if len(used) == 0 {
		return nil
	}
	rows := make([]store.LastUse, 0, len(used))
	for id, at := range used {
		rows = append(rows, store.LastUse{ID: id, Active: store.Micros(at)})
	}
	seen := u.sample(ctx, maps.Keys(used), false)
	err := u.Store.Write(ctx, "flush", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutLastUses(ctx, rows); err != nil {
			return err
		}
		return tx.PutLastSeen(ctx, seen)
	})
	if err != nil {
		u.Activity.MarkDirty(used)
	}
	return err
}

// sample collects how processes of sandboxes ended and what some of the sandboxes use; the final sample, what
// all of them use and printed. It leaves out what it cannot collect in time.
func (u *Recorder) sample(ctx context.Context, ids iter.Seq[string], final bool) []store.LastSeen {
	ctx, cancel := context.WithTimeoutCause(ctx, sampleTimeout, errors.New("sampling sandboxes took too long"))
	defer cancel()
	var all []store.LastSeen
	for id := range ids {
		seen := store.LastSeen{ID: id}
		if final || len(all) < maxUsageSamples {
			seen.Usage = u.Source.Usage(ctx, id)
		}
		if list := u.Activity.Processes(id); len(list) > 0 {
			data, err := json.Marshal(list)
			if err == nil { // it has no numbers that JSON cannot express
				seen.Processes = string(data)
			}
		}
		if final {
			seen.Console = u.Source.Console(ctx, id)
		}
		all = append(all, seen)
	}
	return all
}

// finalSample samples all sandboxes that run or are paused.
func (u *Recorder) finalSample(ctx context.Context) error {
	all, err := u.Source.IDs(ctx, true)
	if err != nil || len(all) == 0 {
		return err
	}
	seen := u.sample(ctx, slices.Values(all), true)
	return u.Store.Write(ctx, "last words", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutLastSeen(ctx, seen)
	})
}

// Periodically calls f at every interval until ctx ends, and logs its errors.
func Periodically(
	ctx context.Context,
	interval time.Duration,
	log *slog.Logger,
	doing string,
	f func(context.Context) error,
) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := f(ctx); err != nil && ctx.Err() == nil {
			log.Warn(doing+" failed; it is tried again", "err", err)
		}
	}
}
