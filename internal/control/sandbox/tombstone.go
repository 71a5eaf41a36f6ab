package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/sandbox/usage"
	"github.com/pandastack/pandastack/internal/control/store"
)

// tombstoneTimeout limits the questions to a dying machine about its output and usage, which are optional.
const tombstoneTimeout = time.Second

// newTombstone collects what is kept of a sandbox: what its machine says now; else console, which the host
// sent; else what was seen last.
func (s *Service) newTombstone(ctx context.Context, r *record, message string, console []byte) *store.Tombstone {
	t := &store.Tombstone{Sandbox: string(r.ID), Workspace: string(r.Workspace), Template: r.Template,
		Reason: string(r.EndReason), By: r.EndBy, Message: message, Created: store.Micros(r.Created),
		Ended: store.Micros(time.Now()), Metadata: r.Metadata}
	if list := s.activity.Processes(string(r.ID)); len(list) > 0 {
		t.Processes = encodeJSON(list)
	}
	seen, err := s.db.Read().LastSeen(ctx, string(r.ID))
	if err != nil {
		s.log.Warn("what was last seen of a sandbox cannot be read", "sandbox", r.ID, "err", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tombstoneTimeout, errors.New("collecting the tombstone took too long"))
	defer cancel()
	t.Console = cmp.Or(s.console(ctx, r), activity.Printable(console), seen.Console)
	stats := s.guestStats(ctx, r.machineID(), tombstoneTimeout/2)
	t.Usage = cmp.Or(s.usageJSON(ctx, r.machineID(), stats), seen.Usage)
	t.Processes = cmp.Or(t.Processes, seen.Processes, "[]")
	return t
}

// console returns the output of a machine, "" if the host cannot give it.
func (s *Service) console(ctx context.Context, r *record) string {
	text, err := s.host.Console(ctx, r.machineID())
	if err != nil {
		return ""
	}
	return activity.Printable(text)
}

// usageJSON measures a machine. It returns "" if that is not possible.
func (s *Service) usageJSON(ctx context.Context, id hostapi.MachineID, guest *api.GuestStats) string {
	u, err := s.host.Usage(ctx, id)
	if err != nil {
		return ""
	}
	out := usage.Host(u)
	out.Guest = guest
	return encodeJSON(out)
}

// Explain says why a sandbox ended; not_found if it lives or is not known.
func (s *Service) Explain(ctx context.Context, p auth.Principal, id api.SandboxID) (_ Tombstone, err error) {
	defer s.finishVerb("explain", time.Now(), &err)
	t, err := s.db.Read().Tombstone(ctx, string(id))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Tombstone{}, err
	}
	if err != nil || p.Workspace == "" || t.Workspace != string(p.Workspace) {
		return Tombstone{}, api.Errorf(api.NotFound, "no end of a sandbox %s is known", id)
	}
	return viewTombstone(&t)
}

// viewTombstone returns a row as users see it.
func viewTombstone(t *store.Tombstone) (Tombstone, error) {
	e := Tombstone{
		Sandbox:  api.SandboxID(t.Sandbox),
		Template: t.Template,
		Reason:   Reason(t.Reason),
		By:       t.By,
		Message:  t.Message,
		Created:  store.Time(t.Created),
		Ended:    store.Time(t.Ended),
		Metadata: visibleMetadata(t.Metadata),
		Console:  t.Console,
	}
	if err := json.Unmarshal([]byte(t.Processes), &e.Processes); err != nil {
		return Tombstone{}, err
	}
	if t.Usage != "" {
		e.Usage = &api.Usage{}
		if err := json.Unmarshal([]byte(t.Usage), e.Usage); err != nil {
			return Tombstone{}, err
		}
	}
	return e, nil
}

// Logs returns what a sandbox printed, alive or after its end. It wakes nothing.
func (s *Service) Logs(ctx context.Context, p auth.Principal, id api.SandboxID) (_ Logs, err error) {
	defer s.finishVerb("logs", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err == nil {
		text, err := s.host.Console(ctx, r.machineID())
		if err != nil && !errors.Is(err, hostapi.ErrNotFound) && !errors.Is(err, hostapi.ErrWrongState) {
			return Logs{}, hosterror.Wrap(err, "read the console of", string(r.ID))
		}
		return Logs{Console: activity.Printable(text), Processes: s.activity.Processes(string(r.ID))}, nil
	}
	e, unknown := s.Explain(ctx, p, id)
	if unknown != nil {
		return Logs{}, err
	}
	return Logs{Console: e.Console, Processes: e.Processes, Tombstone: &e}, nil
}
