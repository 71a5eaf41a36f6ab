package sandbox

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/page"
	"github.com/pandastack/pandastack/internal/control/sandbox/hosterror"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Get returns one sandbox. For a sandbox that ended it returns not_found, and message and details say when,
// why and by whom it was ended. Get does not count as use.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.SandboxID) (_ api.Sandbox, err error) {
	defer s.finishVerb("get", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err != nil {
		return api.Sandbox{}, err
	}
	return s.view(&r), nil
}

// List returns the sandboxes that f selects, newest first unless f asks for the oldest.
//
// Without a limit it returns all of them, with one a page of at most 1000.
func (s *Service) List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (_ Page, err error) {
	defer s.finishVerb("list", time.Now(), &err)
	if p.Workspace == "" {
		return Page{}, errNoWorkspace()
	}
	q := store.SandboxQuery{
		Workspace: string(p.Workspace),
		Template:  f.Template,
		Metadata:  f.Metadata,
		Oldest:    f.Oldest,
		OwnedBy:   new(p.Owner.String()),
	}
	if !f.Since.IsZero() {
		q.Since = max(store.Micros(f.Since), 1) // 0 would be no limit
	}
	for _, status := range f.Statuses {
		if !status.Valid() {
			return Page{}, api.Errorf(api.Invalid, "status: %q is not a state of a sandbox", status).
				With("field", "status")
		}
		q.States = append(q.States, string(status))
	}
	if strings.ContainsRune(fmt.Sprint(f.Template, f.Metadata), 0) {
		return Page{}, api.Errorf(api.Invalid, "metadata: a filter contains a zero byte").With("field", "metadata")
	}
	if f.Template != "" {
		if t, err := s.templates.Resolve(ctx, p, f.Template); err == nil {
			q.Template = t.Name // an unknown name selects nothing
		}
	}
	limit, err := page.Parse(f.Limit, f.Cursor, &q.BeforeCreated, &q.BeforeID)
	if err != nil {
		return Page{}, err
	}
	if limit > 0 {
		q.Limit = limit + 1
	}
	rows, err := s.db.Read().Sandboxes(ctx, q)
	if err != nil {
		return Page{}, err
	}
	result := Page{Sandboxes: []api.Sandbox{}}
	for i := range rows {
		if limit > 0 && i == limit {
			result.Next = page.Cursor(rows[i-1].Created, rows[i-1].ID)
			break
		}
		r := newRecord(&rows[i])
		result.Sandboxes = append(result.Sandboxes, s.view(&r))
	}
	return result, nil
}

// Counts returns the number of sandboxes in each state, of all workspaces.
func (s *Service) Counts(ctx context.Context) (_ map[api.Status]int, err error) {
	defer s.finishVerb("counts", time.Now(), &err)
	rows, err := s.db.Read().CountStates(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[api.Status]int{}
	for _, status := range api.Statuses() {
		counts[status] = rows[string(status)]
	}
	return counts, nil
}

// Capacity returns what the host has and what of it is in use.
func (s *Service) Capacity(ctx context.Context) (_ api.Capacity, err error) {
	defer s.finishVerb("capacity", time.Now(), &err)
	c, err := s.host.Capacity(ctx)
	if err != nil {
		return api.Capacity{}, hosterror.Wrap(err, "ask the capacity of", "the host")
	}
	return api.Capacity{Driver: c.Driver, DriverVersion: c.Version, Accelerator: c.Accelerator, Isolation: c.Isolation,
		CPUs: c.VCPUs, MemoryMB: c.MemoryMiB, MemoryFreeMB: c.MemoryFreeMiB,
		MemoryAvailableMB: c.MemoryAvailableMiB, MemoryPromisedMB: c.MemoryPromisedMiB,
		MemoryPressure: c.MemoryPressure, MemoryShort: c.MemoryShort, DiskMB: c.DiskMiB,
		DiskFreeMB: c.DiskFreeMiB, DiskReserveMB: c.DiskReserveMiB, DiskShort: c.DiskShort,
		Sandboxes: c.Machines, Running: c.Running, WaitingForSpace: c.WaitingForSpace,
		Unresponsive: c.Unresponsive}, nil
}
