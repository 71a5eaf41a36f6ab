package template

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// maxUntaggedVersions is how many versions without a tag a template keeps.
const maxUntaggedVersions = 10

// userTemplate finds a template of a user by id, or by a name that no recipe has.
func (s *Service) userTemplate(ctx context.Context, p auth.Principal, ref string) (api.Template, bool, error) {
	name, tag := api.SplitTemplate(ref)
	row, found, err := s.row(ctx, p, name)
	if err != nil || !found {
		return api.Template{}, false, err
	}
	version, tags, err := s.version(ctx, row, tag)
	if err != nil {
		return api.Template{}, false, err
	}
	if version.ID == "" {
		if tag == "" {
			return api.Template{}, false, api.Errorf(
				api.NotFound,
				"template %s has no version yet: its build has not ended well",
				row.Name,
			)
		}
		return api.Template{}, false, api.Errorf(
			api.NotFound,
			"template %s has no tag or version %q",
			row.Name,
			truncate(tag),
		)
	}
	return viewUserTemplate(p, row, version, tags), true, nil
}

// row finds the row of a user's template that the caller may use, by id, by a name of the caller's workspace, or by
// workspace/name.
func (s *Service) row(ctx context.Context, p auth.Principal, name string) (store.Template, bool, error) {
	if name == "" || p.Workspace == "" {
		return store.Template{}, false, nil
	}
	if api.TemplateID(name).Valid() {
		row, err := s.db.Read().Template(ctx, name)
		if errors.Is(err, store.ErrNotFound) || err == nil && !row.Everyone && row.Workspace != string(p.Workspace) {
			return store.Template{}, false, nil
		}
		return row, err == nil, err
	}
	workspace, plain := string(p.Workspace), name
	if of, rest, ok := strings.Cut(name, "/"); ok {
		workspace, plain = of, rest
	}
	if plain != name {
		row, err := s.db.Read().TemplateNamed(ctx, workspace, plain)
		if errors.Is(err, store.ErrNotFound) || err == nil && !row.Everyone && workspace != string(p.Workspace) {
			return store.Template{}, false, nil
		}
		return row, err == nil, err
	}
	recipes, err := s.list(ctx, false)
	if err != nil {
		return store.Template{}, false, err
	}
	if slices.ContainsFunc(recipes, func(t hostapi.Template) bool { return string(t.Name) == name }) {
		return store.Template{}, false, nil
	}
	row, err := s.db.Read().TemplateNamed(ctx, workspace, name)
	if errors.Is(err, store.ErrNotFound) {
		return store.Template{}, false, nil
	}
	return row, err == nil, err
}

// version finds the version that a tag names; "" is the default tag. If there is none, the version has no id.
func (s *Service) version(ctx context.Context, row store.Template, tag string) (store.Version, []store.Tag, error) {
	tags, err := s.db.Read().Tags(ctx, row.ID)
	if err != nil {
		return store.Version{}, nil, err
	}
	if tag == "" {
		tag = api.DefaultTag
	}
	id := tag
	if i := slices.IndexFunc(tags, func(t store.Tag) bool { return t.Tag == tag }); i >= 0 {
		id = tags[i].Version
	}
	version, err := s.db.Read().Version(ctx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && version.Template != row.ID {
		return store.Version{}, tags, nil
	}
	return version, tags, err
}

func (s *Service) listUserTemplates(ctx context.Context, p auth.Principal) ([]api.Template, error) {
	if p.Workspace == "" {
		return nil, nil
	}
	rows, err := s.db.Read().Templates(ctx, string(p.Workspace))
	if err != nil {
		return nil, err
	}
	var out []api.Template
	for _, row := range rows {
		version, tags, err := s.version(ctx, row, "")
		if err != nil {
			return nil, err
		}
		if version.ID != "" {
			out = append(out, viewUserTemplate(p, row, version, tags))
		}
	}
	return out, nil
}

// viewUserTemplate returns a template as the caller sees it: one of another workspace has the name workspace/name.
func viewUserTemplate(p auth.Principal, row store.Template, v store.Version, tags []store.Tag) api.Template {
	out := api.Template{
		Name: row.Name, ID: api.TemplateID(row.ID), Host: v.ID, Version: api.BuildID(v.ID), SizeBytes: v.Bytes,
		CPU: v.VCPUs, MemoryMB: v.MemoryMiB,
		DiskMB: v.DiskMiB, IsGlobal: row.Everyone, Workspace: api.Workspace(row.Workspace), Label: row.Name,
		Description: row.Description,
		Base:        v.Base, Tools: []string{}, Meta: map[string]string{}, User: v.User, Workdir: v.Workdir, Env: v.Env,
		Start: v.Start, Ready: v.Ready,
		Baked: true, BakedAt: timePtr(store.Time(v.Created)), CreatedAt: timePtr(store.Time(row.Created)),
		Tags: []string{},
	}
	if row.Workspace != string(p.Workspace) {
		out.Name = row.Workspace + "/" + row.Name
		out.Label = out.Name
	}
	out.Limits = limits(v.Limits)
	for _, t := range tags {
		out.Tags = append(out.Tags, t.Tag)
	}
	return out
}

// limits reads limits from a row; nil if there are none.
func limits(text string) *api.Limits {
	var l api.Limits
	if text == "" || json.Unmarshal([]byte(text), &l) != nil || l.IsZero() {
		return nil
	}
	return &l
}

// ownedRow finds a user's template that the caller may change: one of the caller's workspace. A template that is shared
// with all workspaces may be changed only by an operator, a recipe not at all.
func (s *Service) ownedRow(ctx context.Context, p auth.Principal, name string) (store.Template, error) {
	row, found, err := s.row(ctx, p, name)
	if err != nil {
		return store.Template{}, api.AsError(err)
	}
	if !found {
		t, err := s.find(ctx, name, true)
		if err != nil {
			return store.Template{}, api.AsError(err)
		}
		return store.Template{}, api.Errorf(
			api.Forbidden,
			"template %s is a recipe of this server and cannot be changed",
			t.Name,
		)
	}
	if row.Workspace != string(p.Workspace) || row.Everyone && !p.Operator {
		return store.Template{}, errShared(row)
	}
	return row, nil
}

func errShared(row store.Template) error {
	return api.Errorf(
		api.Forbidden,
		"template %s is shared with all workspaces: only an operator's key of workspace %s may change it",
		row.Name,
		row.Workspace,
	)
}

// Delete removes a user's template with all its versions. Sandboxes that use it continue; its files are removed after
// the last of them has ended. A template with a build under way is a conflict.
func (s *Service) Delete(ctx context.Context, p auth.Principal, name string) error {
	row, err := s.ownedRow(ctx, p, name)
	if err != nil {
		return err
	}
	var versions []store.Version
	err = s.db.Write(ctx, "template delete", func(ctx context.Context, tx *store.Tx) error {
		active, err := tx.Builds(ctx, store.BuildQuery{Template: row.ID, States: store.ActiveBuildStates, Limit: 1})
		if err != nil {
			return err
		}
		if len(active) > 0 {
			return api.Errorf(
				api.Conflict,
				"build %s of template %s is under way: cancel it first",
				active[0].ID,
				row.Name,
			)
		}
		if versions, err = tx.Versions(ctx, row.ID); err != nil {
			return err
		}
		return tx.DeleteTemplate(ctx, row.ID)
	})
	if err != nil {
		return api.AsError(err)
	}
	return s.deleteFromHost(ctx, versions)
}

// deleteFromHost deletes versions without rows from the host.
func (s *Service) deleteFromHost(ctx context.Context, versions []store.Version) error {
	var all error
	for _, v := range versions {
		if err := s.host.DeleteTemplate(ctx, hostapi.TemplateName(v.ID)); err != nil &&
			!errors.Is(err, hostapi.ErrNotFound) {
			all = errors.Join(all, err)
		}
	}
	if all != nil {
		return api.Wrap(
			api.Unavailable,
			all,
			"the template is deleted; its files will be removed later, since its host cannot be reached now",
		)
	}
	return nil
}

// Versions lists the versions of a user's template, newest first.
func (s *Service) Versions(ctx context.Context, p auth.Principal, name string) ([]api.TemplateVersion, error) {
	row, found, err := s.row(ctx, p, name)
	if err != nil {
		return nil, api.AsError(err)
	}
	if !found {
		t, err := s.find(ctx, name, true)
		if err != nil {
			return nil, api.AsError(err)
		}
		return nil, api.Errorf(api.Unsupported, "template %s is a recipe of this server: it has no versions", t.Name)
	}
	rows, err := s.db.Read().Versions(ctx, row.ID)
	if err != nil {
		return nil, api.AsError(err)
	}
	tags, err := s.db.Read().Tags(ctx, row.ID)
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.TemplateVersion, 0, len(rows))
	for _, v := range rows {
		view := api.TemplateVersion{
			ID:        api.BuildID(v.ID),
			Tags:      []string{},
			CPU:       v.VCPUs,
			MemoryMB:  v.MemoryMiB,
			DiskMB:    v.DiskMiB,
			SizeBytes: v.Bytes,
			CreatedAt: store.Time(v.Created),
		}
		for _, t := range tags {
			if t.Version == v.ID {
				view.Tags = append(view.Tags, t.Tag)
			}
		}
		out = append(out, view)
	}
	return out, nil
}

// Tag makes tags name the version that another tag or a version's id names.
func (s *Service) Tag(ctx context.Context, p auth.Principal, name string, req api.TagRequest) (api.Template, error) {
	row, err := s.ownedRow(ctx, p, name)
	if err != nil {
		return api.Template{}, err
	}
	if err := checkTags(req.Tags); err != nil {
		return api.Template{}, err
	}
	version, _, err := s.version(ctx, row, req.Target)
	if err != nil {
		return api.Template{}, api.AsError(err)
	}
	if version.ID == "" {
		return api.Template{}, api.Errorf(
			api.NotFound,
			"template %s has no tag or version %q",
			row.Name,
			truncate(req.Target),
		)
	}
	err = s.db.Write(
		ctx,
		"tag",
		func(ctx context.Context, tx *store.Tx) error { return putTags(ctx, tx, version, req.Tags) },
	)
	if err != nil {
		return api.Template{}, api.AsError(err)
	}
	return s.Get(ctx, p, row.ID+":"+version.ID)
}

func checkTags(tags []string) error {
	if len(tags) == 0 || len(tags) > 64 {
		return api.Errorf(api.Invalid, "tags: %d of them: name 1 to 64", len(tags)).With("field", "tags")
	}
	for _, tag := range tags {
		if !api.ValidTemplateName(tag) || api.BuildID(tag).Valid() {
			return api.Errorf(api.Invalid, "tags: %q cannot be a tag: use 1 to 64 of a-z A-Z 0-9 . _ -", truncate(tag)).
				With("field", "tags")
		}
	}
	return nil
}

func putTags(ctx context.Context, tx *store.Tx, v store.Version, tags []string) error {
	for _, tag := range tags {
		if err := tx.PutTag(ctx, &store.Tag{Template: v.Template, Tag: tag, Version: v.ID,
			Created: store.Micros(time.Now())}); err != nil {
			return err
		}
	}
	return nil
}

// Untag removes a tag. Its version stays; the default tag cannot be removed.
func (s *Service) Untag(ctx context.Context, p auth.Principal, name, tag string) error {
	row, err := s.ownedRow(ctx, p, name)
	if err != nil {
		return err
	}
	if tag == api.DefaultTag {
		return api.Errorf(
			api.Invalid,
			"the tag %s cannot be removed: move it to another version, or delete the template",
			tag,
		)
	}
	err = s.db.Write(
		ctx,
		"untag",
		func(ctx context.Context, tx *store.Tx) error { return tx.DeleteTag(ctx, row.ID, tag) },
	)
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "template %s has no tag %q", row.Name, truncate(tag))
	}
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// Claim returns the row of the template that the caller's build makes a version of; it may make it.
//
// global shares it with all workspaces. Only an operator may do so, or make versions of what is shared. A name that a
// recipe or an alias of this server has, or a shared template of another workspace, is a conflict.
func (s *Service) Claim(
	ctx context.Context,
	p auth.Principal,
	name string,
	global bool,
) (row store.Template, made bool, err error) {
	if !api.ValidTemplateName(name) || api.TemplateID(name).Valid() || api.SnapshotID(name).Valid() {
		return row, false, api.Errorf(api.Invalid,
			"name: %q is not a template name: use 1 to 64 of a-z A-Z 0-9 . _ -", truncate(name)).
			With("field", "name")
	}
	if global && !p.Operator {
		return row, false, api.Errorf(api.Forbidden, "only an operator's key may build a template for all workspaces").
			With("field", "global")
	}
	recipes, err := s.list(ctx, true)
	if err != nil {
		return row, false, api.AsError(err)
	}
	if slices.ContainsFunc(recipes, func(t hostapi.Template) bool { return string(t.Name) == name }) {
		return row, false, api.Errorf(api.Conflict, "%s is the name of a recipe of this server: choose another", name)
	}
	err = s.db.Write(ctx, "template claim", func(ctx context.Context, tx *store.Tx) error {
		row, err = tx.TemplateNamed(ctx, string(p.Workspace), name)
		if err == nil {
			if row.Everyone && !p.Operator {
				return errShared(row)
			}
			if global && !row.Everyone {
				row.Everyone = true
				return tx.UpdateTemplate(ctx, &row, "everyone")
			}
			return nil
		}
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if reserved, err := s.isAlias(ctx, tx, name); err != nil || reserved {
			return cmp.Or(err, error(api.Errorf(api.Conflict,
				"%s is another name of a template of this server: choose another", name).With("field", "name")))
		}
		if err := s.quotas.Admit(ctx, tx, p.Workspace, quota.Amount{Kind: quota.Templates, N: 1}); err != nil {
			return err
		}
		now := store.Micros(time.Now())
		row, made = store.Template{
			ID:        string(api.NewTemplateID()),
			Workspace: string(p.Workspace),
			Name:      name,
			Everyone:  global,
			Created:   now,
			Changed:   now,
		}, true
		return tx.InsertTemplate(ctx, &row)
	})
	if errors.Is(err, store.ErrExists) {
		return row, false, api.Errorf(api.Conflict,
			"%s is the name of a template that is shared with all workspaces: choose another", name)
	}
	if err != nil {
		return row, false, api.AsError(err)
	}
	return row, made, nil
}

// isAlias reports whether clients find a template of this server under a name.
func (s *Service) isAlias(ctx context.Context, tx *store.Tx, name string) (bool, error) {
	rows, err := tx.Aliases(ctx)
	_, ok := mergeAliases(s.aliases, rows)[name]
	return ok, err
}

// Forget removes the row of a template without versions, whose first build failed.
func (s *Service) Forget(ctx context.Context, id string) error {
	return s.db.Write(ctx, "template forget", func(ctx context.Context, tx *store.Tx) error {
		versions, err := tx.Versions(ctx, id)
		if err != nil || len(versions) > 0 {
			return err
		}
		builds, err := tx.Builds(ctx, store.BuildQuery{Template: id, Limit: 1})
		if err != nil || len(builds) > 0 {
			return err
		}
		return tx.DeleteTemplate(ctx, id)
	})
}

// Add makes a published template of the host a version of a template, in the caller's transaction.
//
// The tags then name the version; without tags, or if the template has none yet, the default tag does. Add returns the
// surplus versions, whose rows it has removed; the caller passes them to Drop.
func (s *Service) Add(ctx context.Context, tx *store.Tx, v store.Version, tags []string) ([]store.Version, error) {
	known, err := tx.Tags(ctx, v.Template)
	if err != nil {
		return nil, err
	}
	if len(tags) == 0 || len(known) == 0 {
		tags = append([]string{api.DefaultTag}, tags...)
	}
	if err := tx.InsertVersion(ctx, &v); err != nil {
		return nil, err
	}
	if err := putTags(ctx, tx, v, tags); err != nil {
		return nil, err
	}
	row := store.Template{ID: v.Template, Changed: v.Created}
	if err := tx.UpdateTemplate(ctx, &row, "changed"); err != nil {
		return nil, err
	}
	return s.pruneVersions(ctx, tx, v.Template)
}

// pruneVersions removes the rows of the oldest versions without a tag.
func (s *Service) pruneVersions(ctx context.Context, tx *store.Tx, template string) ([]store.Version, error) {
	versions, err := tx.Versions(ctx, template)
	if err != nil {
		return nil, err
	}
	tags, err := tx.Tags(ctx, template)
	if err != nil {
		return nil, err
	}
	var old []store.Version
	free := 0
	for _, v := range versions {
		if slices.ContainsFunc(tags, func(t store.Tag) bool { return t.Version == v.ID }) {
			continue
		}
		if free++; free > maxUntaggedVersions {
			old = append(old, v)
			if err := tx.DeleteVersion(ctx, v.ID); err != nil {
				return nil, err
			}
		}
	}
	return old, nil
}

// Drop deletes versions without rows from the host.
func (s *Service) Drop(ctx context.Context, versions []store.Version) error {
	return s.deleteFromHost(ctx, versions)
}
