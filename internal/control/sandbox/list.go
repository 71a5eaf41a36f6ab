package sandbox

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// maxPage limits the length of a page.
const maxPage = 1000

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
	limit, err := pageOf(f.Limit, f.Cursor, &q.BeforeCreated, &q.BeforeID)
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
	page := Page{Sandboxes: []api.Sandbox{}}
	for i := range rows {
		if limit > 0 && i == limit {
			page.Next = cursor(rows[i-1].Created, rows[i-1].ID)
			break
		}
		r := newRecord(&rows[i])
		page.Sandboxes = append(page.Sandboxes, s.view(&r))
	}
	return page, nil
}

// cursor returns the cursor of a position in a list: after the item of that time and id.
func cursor(created int64, id string) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", created, id))
}

// pageOf checks limit and cursor and sets where the page starts.
func pageOf(limit int, text string, created *int64, id *string) (int, error) {
	if limit < 0 || limit > maxPage {
		return 0, api.Errorf(api.Invalid, "limit: %d is out of range: use 1 to %d, or leave it out", limit, maxPage).
			With("field", "limit")
	}
	if text == "" {
		return limit, nil
	}
	bad := api.Errorf(api.Invalid, "cursor: it was not issued by this server: start without a cursor").
		With("field", "cursor")
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return 0, bad
	}
	number, name, ok := strings.Cut(string(data), ".")
	if !ok || name == "" || len(name) > 64 || strings.ContainsRune(name, 0) {
		return 0, bad
	}
	if *created, err = strconv.ParseInt(number, 10, 64); err != nil || !utf8.ValidString(name) {
		return 0, bad
	}
	*id = name
	return limit, nil
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
		return api.Capacity{}, hostError(err, "ask the capacity of", "the host")
	}
	return api.Capacity{Driver: c.Driver, DriverVersion: c.Version, Accelerator: c.Accelerator, Isolation: c.Isolation,
		CPUs: c.VCPUs, MemoryMB: c.MemoryMiB, MemoryFreeMB: c.MemoryFreeMiB, DiskMB: c.DiskMiB,
		DiskFreeMB: c.DiskFreeMiB, DiskReserveMB: c.DiskReserveMiB, DiskShort: c.DiskShort,
		Sandboxes: c.Machines, Running: c.Running, WaitingForSpace: c.WaitingForSpace}, nil
}
