package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// What a sandbox takes, prints and runs is looked at while it lives and written down, so that it is known of one
// whose machine, host or control plane ends without a word.

// Bounds of one look at all sandboxes that were used: it is a nicety.
const (
	sampleTimeout   = 2 * time.Second
	maxUsageSamples = 8 // sandboxes that are measured, which costs the most of it: any of them, now these, now those
)

// sample sees how the processes of sandboxes ended and what some of them take, and, if it is the last look, what all
// of them take and printed. What cannot be seen in time is left out.
func (s *Service) sample(ctx context.Context, ids iter.Seq[string], last bool) []store.LastSeen {
	ctx, cancel := context.WithTimeoutCause(ctx, sampleTimeout, errors.New("the look took too long"))
	defer cancel()
	var all []store.LastSeen
	for id := range ids {
		seen := store.LastSeen{ID: id}
		if last || len(all) < maxUsageSamples {
			seen.Usage = s.usageText(ctx, hostapi.MachineID(id), nil)
		}
		if list := s.activity.Processes(id); len(list) > 0 {
			seen.Processes = jsonText(list)
		}
		if last {
			if printed, err := s.host.Console(ctx, hostapi.MachineID(id)); err == nil {
				seen.Console = activity.Printable(printed)
			}
		}
		all = append(all, seen)
	}
	return all
}

// usageText measures a machine, as JSON; "" if that cannot be done.
func (s *Service) usageText(ctx context.Context, id hostapi.MachineID, inside *api.GuestStats) string {
	u, err := s.host.Usage(ctx, id)
	if err != nil {
		return ""
	}
	out := viewUsage(u)
	out.Guest = inside
	return jsonText(out)
}

// jsonText is a value as JSON, "" if it has a number that JSON cannot have.
func jsonText(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(data)
}

// finalSample looks at all sandboxes once more before this control plane ends, since their machines may end with
// it.
func (s *Service) finalSample(ctx context.Context) error {
	rows, err := s.db.Read().
		Sandboxes(ctx, store.SandboxQuery{States: []string{string(api.Running), string(api.Paused)}})
	if err != nil || len(rows) == 0 {
		return err
	}
	seen := s.sample(ctx, func(yield func(string) bool) {
		for _, r := range rows {
			if !yield(r.ID) {
				return
			}
		}
	}, true)
	return s.db.Write(
		ctx,
		"last words",
		func(ctx context.Context, tx *store.Tx) error { return tx.PutLastSeen(ctx, seen) },
	)
}

// loadProcesses takes up what an earlier control plane saw of processes.
func (s *Service) loadProcesses(ctx context.Context) error {
	rows, err := s.db.Read().LastProcesses(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		var list []activity.ProcessEnd
		if err := json.Unmarshal([]byte(r.Processes), &list); err != nil {
			return err
		}
		s.activity.Load(r.ID, list)
	}
	return nil
}

// tombstone gathers what outlives a sandbox: what its machine tells now, printed, which the host told of the
// console, or else what was seen last.
func (s *Service) tombstone(ctx context.Context, r *store.Sandbox, message string, printed []byte) *store.Tombstone {
	t := &store.Tombstone{Sandbox: r.ID, Workspace: r.Workspace, Template: r.Template, Reason: r.EndReason, By: r.EndBy,
		Message: message, Created: r.Created, Ended: store.Micros(time.Now()), Metadata: r.Metadata}
	if list := s.activity.Processes(r.ID); len(list) > 0 {
		t.Processes = jsonText(list)
	}
	seen, err := s.db.Read().LastSeen(ctx, r.ID)
	if err != nil {
		s.log.Warn("what was seen last of a sandbox cannot be read", "sandbox", r.ID, "err", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tombstoneTimeout, errors.New("the last look took too long"))
	defer cancel()
	t.Console = cmp.Or(s.console(ctx, r), activity.Printable(printed), seen.Console)
	half, stop := context.WithTimeoutCause(ctx, tombstoneTimeout/2, errors.New("the guest did not answer in time"))
	defer stop()
	t.Usage = cmp.Or(s.usageText(ctx, machineID(r), s.guestStats(half, r)), seen.Usage)
	t.Processes = cmp.Or(t.Processes, seen.Processes, "[]")
	return t
}

// tombstoneTimeout bounds how long a dying machine is asked for what it printed and took: it is a nicety.
const tombstoneTimeout = time.Second

// console gives what a machine printed, "" if that cannot be had.
func (s *Service) console(ctx context.Context, r *store.Sandbox) string {
	text, err := s.host.Console(ctx, machineID(r))
	if err != nil {
		return ""
	}
	return activity.Printable(text)
}
