// Package template implements what users do with templates: lists, aliases, versions, tags, and bakes.
//
// There are two kinds. Recipes belong to the host: all workspaces may use them, none may delete them, and a
// name that a recipe has means the recipe. Templates of users have a row in the store, a version for every
// successful build, and tags that name versions; each version is a published template of the host, named after its
// build. They belong to a workspace. An operator may share them with all, for whom their name is workspace/name: a name
// alone never means a template of another workspace. For a caller who may not use a template, it does not exist.
//
// Hosts own what is baked. This package asks them and caches the result for a moment, since every create looks up
// its template. The row of a version is written after the host has the version, and removed before the host deletes
// it, so that every row is valid; the collector of builds removes what a crash leaves on the host. All methods may
// be called concurrently; errors are *api.Error.
package template

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Host is what this package needs of a host. hostapi.Host has it.
type Host interface {
	Templates(ctx context.Context) ([]hostapi.Template, error)
	StartBake(ctx context.Context, name hostapi.TemplateName, force bool) error
	DeleteTemplate(ctx context.Context, name hostapi.TemplateName) error
}

// BuiltinAliases returns the aliases that published clients ask for by default.
func BuiltinAliases() map[string]string {
	return map[string]string{
		"ubuntu-24.04":        "base",
		"ubuntu-24.04-net":    "base",
		"debian":              "base",
		"default":             "base",
		"code-interpreter":    "base",
		"code-interpreter-v1": "base",
	}
}

// cacheTTL is how long a create may use a list of the host.
const cacheTTL = 2 * time.Second

// Service implements the verbs on templates.
type Service struct {
	host    Host
	db      *store.DB
	aliases map[string]string
	quotas  *quota.Quotas

	mu        sync.Mutex
	cache     []hostapi.Template
	at        time.Time
	published map[string]hostapi.Template // published ones, as the host listed them last
}

// New returns a service. aliases are used in addition to those in the store; a name that the host has wins
// over both. quotas may be nil for the default quotas.
func New(host Host, db *store.DB, aliases map[string]string, quotas *quota.Quotas) (*Service, error) {
	if host == nil || db == nil {
		return nil, errors.New("template: host and store are required")
	}
	if quotas == nil {
		quotas = quota.New(quota.Config{}, db)
	}
	return &Service{host: host, db: db, aliases: maps.Clone(aliases), quotas: quotas}, nil
}

// list returns the host's recipes by name; unless fresh, they may come from the cache.
func (s *Service) list(ctx context.Context, fresh bool) ([]hostapi.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !fresh && !s.at.IsZero() && time.Since(s.at) < cacheTTL {
		return s.cache, nil
	}
	all, err := s.host.Templates(ctx)
	if err != nil {
		return nil, api.Wrap(api.Unavailable, err, "the host's templates cannot be listed now")
	}
	s.published = map[string]hostapi.Template{}
	for _, t := range all {
		if t.Published {
			s.published[string(t.Name)] = t
		}
	}
	all = slices.DeleteFunc(all, func(t hostapi.Template) bool { return t.Published }) // those have rows
	slices.SortFunc(all, func(a, b hostapi.Template) int { return strings.Compare(string(a.Name), string(b.Name)) })
	s.cache, s.at = all, time.Now()
	return all, nil
}

// find looks a recipe up by name or alias.
func (s *Service) find(ctx context.Context, name string, fresh bool) (hostapi.Template, error) {
	all, err := s.list(ctx, fresh)
	if err != nil {
		return hostapi.Template{}, err
	}
	at := func(name string) (hostapi.Template, bool) {
		i := slices.IndexFunc(all, func(t hostapi.Template) bool { return string(t.Name) == name })
		if i < 0 {
			return hostapi.Template{}, false
		}
		return all[i], true
	}
	if t, ok := at(name); ok {
		return t, nil
	}
	known, err := s.db.Read().Aliases(ctx)
	if err != nil {
		return hostapi.Template{}, err
	}
	aliases := mergeAliases(s.aliases, known)
	if t, ok := at(aliases[name]); ok {
		return t, nil
	}
	if !fresh { // it may be new
		return s.find(ctx, name, true)
	}
	names := make([]string, 0, len(all))
	for _, t := range all {
		names = append(names, string(t.Name))
	}
	return hostapi.Template{}, api.Errorf(
		api.NotFound,
		"template %q not found: there are %s",
		truncate(name),
		strings.Join(names, ", "),
	)
}

func mergeAliases(configured map[string]string, rows []store.Alias) map[string]string {
	out := maps.Clone(configured)
	if out == nil {
		out = map[string]string{}
	}
	for _, r := range rows {
		out[r.Name] = r.Template
	}
	return out
}

// truncate shortens a caller's text for a message.
func truncate(name string) string {
	if len(name) > 64 {
		return name[:64] + "..."
	}
	return name
}

// Resolve returns a template by name, alias or id, for a create. A name may have a tag after a colon.
func (s *Service) Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error) {
	return s.get(ctx, p, name, false)
}

// get finds a user's template, a recipe, or what an alias means, in this order.
func (s *Service) get(ctx context.Context, p auth.Principal, name string, fresh bool) (api.Template, error) {
	built, found, err := s.userTemplate(ctx, p, name)
	if err != nil || found {
		return built, err
	}
	plain, tag := api.SplitTemplate(name)
	t, err := s.find(ctx, plain, fresh)
	if err == nil && tag != "" && string(t.Name) != plain { // an alias with a tag is the name of an image elsewhere
		err = api.Errorf(api.NotFound, "template %q not found", truncate(name))
	}
	if err != nil {
		return api.Template{}, api.AsError(err)
	}
	return view(t), nil
}

// List returns all templates that the caller may use, by name.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.Template, error) {
	all, err := s.list(ctx, true)
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.Template, 0, len(all))
	for _, t := range all {
		if t.Hidden {
			continue
		}
		out = append(out, view(t))
	}
	built, err := s.listUserTemplates(ctx, p)
	if err != nil {
		return nil, api.AsError(err)
	}
	for i := range built {
		s.fillSizes(&built[i])
	}
	out = append(out, built...)
	slices.SortFunc(out, func(a, b api.Template) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Get returns a template by name, alias or id, with its versions. A name may have a tag after a colon.
func (s *Service) Get(ctx context.Context, p auth.Principal, name string) (api.Template, error) {
	t, err := s.get(ctx, p, name, true)
	if err == nil && t.ID != "" {
		if _, err := s.list(ctx, true); err == nil { // otherwise the sizes are those of its build
			s.fillSizes(&t)
		}
		t.Versions, err = s.Versions(ctx, p, string(t.ID))
	}
	return t, err
}

// Bake starts a bake of a template, or joins one under way. The result has the progress.
//
// Only an operator may force a new bake of a template that is baked.
func (s *Service) Bake(ctx context.Context, p auth.Principal, name string, req api.BakeRequest) (api.Template, error) {
	t, err := s.find(ctx, name, true)
	if err != nil {
		return api.Template{}, api.AsError(err)
	}
	if req.Force && !p.Operator {
		return api.Template{}, api.Errorf(api.Forbidden, "only an operator's key may bake template %s again", t.Name)
	}
	if err := s.host.StartBake(ctx, t.Name, req.Force); err != nil {
		return api.Template{}, bakeError(err, string(t.Name))
	}
	if t, err = s.find(ctx, string(t.Name), true); err != nil {
		return api.Template{}, api.AsError(err)
	}
	return view(t), nil
}

func bakeError(err error, name string) error {
	switch {
	case errors.Is(err, hostapi.ErrNotFound):
		return api.Wrap(api.NotFound, err, "template "+name+" not found on its host")
	case errors.Is(err, hostapi.ErrNoSpace):
		return api.Wrap(
			api.NoSpace,
			err,
			"bake "+name+": there is not enough disk space on the host: "+
				"delete snapshots or sandboxes, or enlarge the data directory",
		)
	case errors.Is(err, hostapi.ErrInUse), errors.Is(err, hostapi.ErrExists):
		return api.Wrap(api.Conflict, err, "bake "+name+": "+err.Error())
	case errors.Is(err, hostapi.ErrUnsupported):
		return api.Wrap(api.Unsupported, err, "bake "+name+": "+err.Error())
	}
	return api.AsError(err)
}

// SetAlias makes a name an alias of a template. Only an operator may do so.
func (s *Service) SetAlias(ctx context.Context, p auth.Principal, name, template string) error {
	if !p.Operator {
		return api.Errorf(api.Forbidden, "only an operator's key may change names of templates")
	}
	if !api.ValidTemplateName(name) {
		return api.Errorf(api.Invalid, "name: %q is not a template name: use 1 to 64 of a-z A-Z 0-9 . _ -",
			truncate(name)).
			With("field", "name")
	}
	t, err := s.find(ctx, template, true)
	if err != nil {
		return api.AsError(err)
	}
	err = s.db.Write(ctx, "alias", func(ctx context.Context, tx *store.Tx) error {
		return tx.PutAlias(ctx, &store.Alias{Name: name, Template: string(t.Name), Created: store.Micros(time.Now())})
	})
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// fillSizes sets the current sizes of a user's template, if the host has listed it.
func (s *Service) fillSizes(t *api.Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on, ok := s.published[t.Host]; ok {
		t.SizeBytes, t.ApparentBytes, t.DataDisks = on.Bytes, on.ApparentBytes, dataDisks(on.Disks)
	}
}

func view(t hostapi.Template) api.Template {
	out := api.Template{
		Name:          string(t.Name),
		Host:          string(t.Name),
		SizeBytes:     t.Bytes,
		ApparentBytes: t.ApparentBytes,
		CPU:           t.VCPUs,
		MemoryMB:      t.MemoryMiB,
		DiskMB:        t.DiskMiB,
		DataDisks: dataDisks(
			t.Disks,
		),
		IsGlobal:    true,
		Label:       string(t.Name),
		Description: t.Description,
		Base:        t.Base,
		Tools:       t.Tools,
		Meta:        map[string]string{},
		User:        t.User,
		Workdir:     t.Workdir,
		Baked:       t.Baked,
		BakedAt:     timePtr(t.BakedAt),
	}
	if out.Tools == nil {
		out.Tools = []string{}
	}
	if l := api.Limits(t.Limits); !l.IsZero() {
		out.Limits = &l
	}
	if b := t.Bake; b != nil {
		out.Bake = &api.Bake{
			State:     b.State,
			Step:      b.Step,
			Percent:   b.Percent,
			StartedAt: b.Started.UTC(),
			EndedAt:   timePtr(b.Ended),
			Error:     b.Err,
			Log:       b.Log,
		}
	}
	return out
}

func dataDisks(all []hostapi.DataDisk) []api.DataDisk {
	var out []api.DataDisk
	for _, d := range all {
		out = append(out, api.DataDisk{Name: d.Name, SizeMB: d.SizeMiB, MountPath: d.Mount})
	}
	return out
}

func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
