package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Limits of one sample of all sandboxes that were used; what it finds is optional.
const (
	sampleTimeout   = 2 * time.Second
	maxUsageSamples = 8 // sandboxes whose usage is measured, the most expensive part; which ones differs every time
)

// observed is what the useRecorder needs of the sandboxes. Service implements it.
type observed interface {
	loadAll(ctx context.Context, q store.SandboxQuery) ([]record, error)
	// usageJSON measures a machine; "" if that is not possible.
	usageJSON(ctx context.Context, id hostapi.MachineID, guest *api.GuestStats) string
	// console returns the output of a machine; "" if the host cannot give it.
	console(ctx context.Context, r *record) string
}

// useRecorder writes when sandboxes were used last, and what their machines use, print and run. So it is known of a
// sandbox whose machine, host or control plane ends without notice.
type useRecorder struct {
	sandboxes observed
	activity  *activity.Tracker
	db        *store.DB
	interval  time.Duration
	log       *slog.Logger
}

func (s *Service) newUseRecorder() *useRecorder {
	return &useRecorder{sandboxes: s, activity: &s.activity, db: s.db, interval: s.cfg.FlushInterval, log: s.log}
}

// load counts the start of the control plane as use of every sandbox, since nothing could be used while it was
// down, and reads what an earlier control plane knew of processes.
func (u *useRecorder) load(ctx context.Context) {
	all, err := u.sandboxes.loadAll(ctx, store.SandboxQuery{})
	if err != nil {
		u.log.Warn("reading sandboxes failed", "err", err)
		return
	}
	for _, r := range all {
		u.activity.Touch(string(r.ID))
	}
	if err := u.loadProcesses(ctx); err != nil {
		u.log.Warn("reading what was last seen of processes failed", "err", err)
	}
}

func (u *useRecorder) loadProcesses(ctx context.Context) error {
	rows, err := u.db.Read().LastProcesses(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		var list []activity.ProcessEnd
		if err := json.Unmarshal([]byte(r.Processes), &list); err != nil {
			return err
		}
		u.activity.Load(r.ID, list)
	}
	return nil
}

// Run writes at every interval until ctx ends.
func (u *useRecorder) Run(ctx context.Context) error {
	return periodically(ctx, u.interval, u.log, "writing last uses", u.flush)
}

// finish writes once more before this control plane ends, since machines may end with it.
func (u *useRecorder) finish(ctx context.Context) {
	if err := errors.Join(u.flush(ctx), u.finalSample(ctx)); err != nil {
		u.log.Warn("writing last uses failed", "err", err)
	}
}

// flush writes the uses that are not in the store, with a sample of the sandboxes that were used.
func (u *useRecorder) flush(ctx context.Context) error {
	used := u.activity.DrainDirty()
	if len(used) == 0 {
		return nil
	}
	rows := make([]store.LastUse, 0, len(used))
	for id, at := range used {
		rows = append(rows, store.LastUse{ID: id, Active: store.Micros(at)})
	}
	seen := u.sample(ctx, maps.Keys(used), false)
	err := u.db.Write(ctx, "flush", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.PutLastUses(ctx, rows); err != nil {
			return err
		}
		return tx.PutLastSeen(ctx, seen)
	})
	if err != nil {
		u.activity.MarkDirty(used)
	}
	return err
}

// sample collects how processes of sandboxes ended and what some of the sandboxes use; the final sample, what
// all of them use and printed. It leaves out what it cannot collect in time.
func (u *useRecorder) sample(ctx context.Context, ids iter.Seq[string], final bool) []store.LastSeen {
	ctx, cancel := context.WithTimeoutCause(ctx, sampleTimeout, errors.New("sampling sandboxes took too long"))
	defer cancel()
	var all []store.LastSeen
	for id := range ids {
		seen := store.LastSeen{ID: id}
		if final || len(all) < maxUsageSamples {
			seen.Usage = u.sandboxes.usageJSON(ctx, hostapi.MachineID(id), nil)
		}
		if list := u.activity.Processes(id); len(list) > 0 {
			seen.Processes = encodeJSON(list)
		}
		if final {
			seen.Console = u.sandboxes.console(ctx, &record{ID: api.SandboxID(id)})
		}
		all = append(all, seen)
	}
	return all
}

// finalSample samples all sandboxes that run or are paused.
func (u *useRecorder) finalSample(ctx context.Context) error {
	states := []string{string(api.Running), string(api.Paused)}
	all, err := u.sandboxes.loadAll(ctx, store.SandboxQuery{States: states})
	if err != nil || len(all) == 0 {
		return err
	}
	seen := u.sample(ctx, func(yield func(string) bool) {
		for _, r := range all {
			if !yield(string(r.ID)) {
				return
			}
		}
	}, true)
	return u.db.Write(ctx, "last words", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutLastSeen(ctx, seen)
	})
}
