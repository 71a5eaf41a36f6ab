package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Start queues a build. Its upload, which may be nil, belongs to the build from then on. If an earlier build has made
// the same template, or is about to, Start returns that build with Reused set.
func (s *Service) Start(ctx context.Context, p auth.Principal, spec Spec, input *Upload) (api.Build, error) {
	if p.Workspace == "" {
		return api.Build{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := spec.check(); err != nil {
		return api.Build{}, err
	}
	if err := s.checkSource(ctx, p, spec); err != nil {
		return api.Build{}, err
	}
	if input != nil {
		digest, err := input.finish()
		if err != nil {
			return api.Build{}, api.AsError(err)
		}
		spec.Input = digest
	}
	var err error
	if spec.Sources, err = s.resolveSources(ctx, p, spec); err != nil {
		return api.Build{}, api.AsError(err)
	}
	template, made, err := s.templates.Claim(ctx, p, spec.Name, spec.Global)
	if err != nil {
		return api.Build{}, err
	}
	row := store.Build{
		ID:        string(api.NewBuildID()),
		Workspace: string(p.Workspace),
		Template:  template.ID,
		Name:      template.Name,
		State:     stateQueued,
		Hash:      spec.hash(),
		Created:   store.Micros(time.Now()),
	}
	got, err := s.enqueue(ctx, row, spec, input)
	if err != nil || got.ID != row.ID {
		if made {
			err = errors.Join(err, s.templates.Forget(ctx, template.ID))
		}
		if err != nil {
			return api.Build{}, asError(err)
		}
		out := view(got)
		out.Reused = true
		return out, nil
	}
	return view(got), nil
}

// enqueue writes the inputs, the row and the job of a build, or returns an equivalent build.
func (s *Service) enqueue(ctx context.Context, row store.Build, spec Spec, input *Upload) (_ store.Build, err error) {
	if row.Spec, err = spec.encode(); err != nil {
		return row, err
	}
	if input != nil {
		if err := os.MkdirAll(s.dir("inputs", row.ID), 0o700); err != nil {
			return row, wrapNoSpace(err)
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, os.RemoveAll(s.dir("inputs", row.ID)))
			}
		}()
		if err := input.moveTo(s.inputPath(row.ID)); err != nil {
			return row, wrapNoSpace(err)
		}
	}
	if spec.Registry != nil { // before a worker can see the build
		s.setSecret(row.ID, spec.Registry)
	}
	var same *store.Build
	err = s.db.Write(ctx, "build enqueue", func(ctx context.Context, tx *store.Tx) (err error) {
		if same, err = s.findEquivalent(ctx, tx, row, spec); err != nil || same != nil {
			return err
		}
		if err := s.admit(ctx, tx, row, spec); err != nil {
			return err
		}
		if err := tx.InsertBuild(ctx, &row); err != nil {
			return err
		}
		if input != nil {
			if err := input.space.moveTo(ctx, tx, inputSpace(row.ID)); err != nil {
				return err
			}
		}
		return s.enqueueJob(ctx, tx, row, 0)
	})
	if err != nil || same != nil {
		s.setSecret(row.ID, nil)
	}
	if err != nil {
		return row, err
	}
	if same != nil {
		return *same, os.RemoveAll(s.dir("inputs", row.ID))
	}
	if input != nil {
		input.taken = true
	}
	s.jobs.Notify()
	return row, nil
}

// setSecret keeps the credentials of a build in memory, or forgets them if they are nil. They are never stored.
func (s *Service) setSecret(build string, who *api.RegistryAuth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if who == nil {
		delete(s.secrets, build)
		return
	}
	s.secrets[build] = who
}

// findEquivalent returns a build of the same template and content as row that is done or active, or nil. If a source of
// the build may have changed since, only an active build is equivalent.
func (s *Service) findEquivalent(ctx context.Context, tx *store.Tx, row store.Build, spec Spec) (*store.Build, error) {
	if spec.mutable() {
		return nil, nil
	}
	states := []string{stateQueued, stateRunning, stateDone}
	if slices.Contains(spec.Sources, unpinned) {
		states = states[:2]
	}
	rows, err := tx.Builds(ctx, store.BuildQuery{Template: row.Template, Hash: row.Hash, States: states, Limit: 20})
	if err != nil {
		return nil, err
	}
	tags, err := tx.Tags(ctx, row.Template)
	if err != nil {
		return nil, err
	}
	wanted := spec.Tags
	if len(wanted) == 0 {
		wanted = []string{api.DefaultTag}
	}
	for i, r := range rows {
		if r.State != stateDone {
			return &rows[i], nil
		}
		all := true
		for _, tag := range wanted {
			all = all && slices.ContainsFunc(tags, func(t store.Tag) bool { return t.Tag == tag && t.Version == r.ID })
		}
		if all {
			return &rows[i], nil
		}
	}
	return nil, nil
}

// admit refuses a build beyond the quota of its workspace, or of an existing template without Replace.
func (s *Service) admit(ctx context.Context, tx *store.Tx, row store.Build, spec Spec) error {
	uses := quota.Amount{Kind: quota.Builds, N: 1}
	if err := s.quotas.Admit(ctx, tx, api.Workspace(row.Workspace), uses); err != nil {
		return err
	}
	if spec.Replace {
		return nil
	}
	versions, err := tx.Versions(ctx, row.Template)
	if err != nil {
		return err
	}
	if len(versions) > 0 {
		return api.Errorf(api.Conflict, "template %s exists: send replace=true to make a new version of it", row.Name)
	}
	active, err := tx.Builds(ctx, store.BuildQuery{Template: row.Template, States: store.ActiveBuildStates, Limit: 1})
	if err != nil {
		return err
	}
	if len(active) > 0 {
		return api.Errorf(
			api.Conflict,
			"build %s of template %s is under way: cancel it, or send replace=true to queue another",
			active[0].ID,
			row.Name,
		)
	}
	return nil
}

func (s *Service) inputPath(build string) string { return s.dir("inputs", build, "input") }

// checkSource refuses a source that does not exist for the caller or that the server does not support.
func (s *Service) checkSource(ctx context.Context, p auth.Principal, spec Spec) error {
	var err error
	switch {
	case spec.FromSnapshot != "":
		_, err = s.sandboxes.Snapshot(ctx, p, spec.FromSnapshot)
	case spec.FromTemplate != "":
		var t api.Template
		if t, err = s.templates.Resolve(ctx, p, spec.FromTemplate); err == nil && t.ID == "" && !spec.OnBase {
			err = api.Errorf(
				api.Unsupported,
				"from_template: %s is a recipe of this server: build on it with a Dockerfile that begins with FROM %s",
				t.Name,
				t.Name,
			)
		}
	case spec.ImageRef != "" && s.registry == nil:
		err = api.Errorf(api.Unsupported, "image_ref: this server does not build from images of registries")
	}
	for _, step := range spec.Steps {
		if err != nil || step.Type != "COPY" {
			continue
		}
		var there bool
		if there, err = s.HasFiles(ctx, p, step.Files); err == nil && !there {
			err = api.Errorf(api.Invalid, "steps: the files %s of a COPY were not uploaded", step.Files).
				With("field", "steps")
		}
	}
	if err == nil && spec.Limits != nil {
		err = s.checkLimits(ctx, *spec.Limits)
	}
	if err != nil {
		return api.AsError(err)
	}
	return nil
}

// checkLimits refuses limits above those of the host.
func (s *Service) checkLimits(ctx context.Context, l api.Limits) error {
	has, err := s.host.Capacity(ctx)
	if err != nil {
		return err
	}
	err = hostapi.Limits(l).Check(has.Limits)
	if which, ok := errors.AsType[*hostapi.LimitError](err); ok {
		return api.Wrap(api.Invalid, err, err.Error()).With("field", "limits."+which.Field)
	}
	return err
}

// find returns a build of the caller's workspace.
func (s *Service) find(ctx context.Context, p auth.Principal, id api.BuildID) (store.Build, error) {
	row, err := s.db.Read().Build(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && row.Workspace != string(p.Workspace) {
		return row, api.Errorf(api.NotFound, "build %s not found", id)
	}
	if err != nil {
		return row, api.AsError(err)
	}
	return row, nil
}

// Get returns a build.
func (s *Service) Get(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.Build{}, err
	}
	return view(row), nil
}

// List returns at most 500 builds of the caller, newest first; with a name those of that template.
func (s *Service) List(ctx context.Context, p auth.Principal, name string) ([]api.Build, error) {
	rows, err := s.db.Read().Builds(ctx, store.BuildQuery{Workspace: string(p.Workspace), Limit: 500})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := []api.Build{}
	for _, r := range rows {
		if name == "" || r.Name == name || r.Template == name {
			out = append(out, view(r))
		}
	}
	return out, nil
}

var errCancelled = api.Errorf(api.Canceled, "the build was cancelled")

// Cancel ends a build that has not ended, and returns it. Of a build under way only its finished layers stay.
func (s *Service) Cancel(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return api.Build{}, err
	}
	if slices.Contains(store.ActiveBuildStates, row.State) {
		if _, err := s.jobs.Cancel(ctx, row.ID); err != nil && !errors.Is(err, store.ErrNotFound) {
			return api.Build{}, api.AsError(err)
		}
		if row, err = s.find(ctx, p, id); err != nil {
			return api.Build{}, err
		}
	}
	switch row.State {
	case stateFailed:
		return view(row), nil
	case stateDone:
		return view(row), api.Errorf(api.WrongState, "build %s has ended: %s", id, row.State)
	}
	// The build has no job: it is deferred, or a version of this program without a job queue runs it.
	was := row.State
	row.State, row.Error, row.Code = stateFailed, errCancelled.Message, string(errCancelled.Code)
	row.Ended = store.Micros(time.Now())
	err = s.db.Write(ctx, "build cancel", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateBuild(ctx, &row, []string{was}, "state", "error", "code", "ended")
	})
	if errors.Is(err, store.ErrNotFound) {
		return s.Cancel(ctx, p, id) // its state has changed meanwhile
	}
	if err != nil {
		return api.Build{}, api.AsError(err)
	}
	return view(row), nil
}

// CancelAll cancels all builds of a workspace that have not ended.
func (s *Service) CancelAll(ctx context.Context, workspace api.Workspace) error {
	rows, err := s.db.Read().Builds(ctx,
		store.BuildQuery{Workspace: string(workspace), States: store.UnendedBuildStates})
	if err != nil {
		return err
	}
	var all error
	for _, r := range rows {
		_, err := s.Cancel(ctx, auth.Principal{Workspace: workspace}, api.BuildID(r.ID))
		if code := api.CodeOf(err); code != api.WrongState && code != api.NotFound { // it has ended meanwhile
			all = errors.Join(all, err)
		}
	}
	return all
}

// Retry queues a failed build as a new build with the same inputs. It needs the credentials of a registry again.
func (s *Service) Retry(
	ctx context.Context,
	p auth.Principal,
	id api.BuildID,
	who *api.RegistryAuth,
) (api.Build, error) {
	old, err := s.find(ctx, p, id)
	if err != nil {
		return api.Build{}, err
	}
	if old.State != stateFailed {
		return api.Build{}, api.Errorf(
			api.WrongState,
			"build %s is %s: only a failed build can be retried",
			id,
			view(old).Status,
		)
	}
	spec, err := decodeSpec(old.Spec)
	if err != nil {
		return api.Build{}, api.AsError(err)
	}
	spec.Registry = who
	if spec.Sources, err = s.resolveSources(ctx, p, spec); err != nil {
		return api.Build{}, api.AsError(err)
	}
	var input *Upload
	if spec.Input != "" {
		if input, err = s.linkInput(ctx, p, old.ID); err != nil {
			return api.Build{}, err
		}
		defer func() { _ = input.Close() }() // Open removes a file that stays
	}
	template, _, err := s.templates.Claim(ctx, p, old.Name, spec.Global)
	if err != nil {
		return api.Build{}, err
	}
	row := store.Build{
		ID:        string(api.NewBuildID()),
		Workspace: old.Workspace,
		Template:  template.ID,
		Name:      template.Name,
		State:     stateQueued,
		Hash:      spec.hash(),
		Created:   store.Micros(time.Now()),
	}
	got, err := s.enqueue(ctx, row, spec, input)
	if err != nil {
		return api.Build{}, asError(err)
	}
	return view(got), nil
}

// linkInput returns the input of an earlier build as an upload. It is charged again, since either build may end first.
func (s *Service) linkInput(ctx context.Context, p auth.Principal, build string) (*Upload, error) {
	path := s.dir("spool", "again"+string(api.NewBuildID()))
	err := os.Link(s.inputPath(build), path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, api.Errorf(
			api.Gone,
			"the files of build %s are kept for %s after its end: send them again",
			build,
			s.cfg.KeepInputs,
		)
	}
	if err != nil {
		return nil, api.AsError(wrapNoSpace(err))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, api.AsError(err)
	}
	u := &Upload{f: f, space: s.newSpace(ctx, p.Workspace, spoolSpace(path))}
	info, err := f.Stat()
	if err == nil {
		err = u.space.take(info.Size())
	}
	if err != nil {
		return nil, asError(errors.Join(err, u.Close()))
	}
	return u, nil
}

// asError returns the *api.Error in err, or one for it.
func asError(err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return api.AsError(err)
}

// view returns a row as the API shows it.
func view(r store.Build) api.Build {
	out := api.Build{
		ID: api.BuildID(
			r.ID,
		), Name: r.Name, TemplateID: api.TemplateID(r.Template), Error: r.Error, Code: api.Code(r.Code), Step: r.Step,
		StepsDone: r.Done, Steps: r.Steps, StepsCached: r.Cached, StartedAt: store.Time(r.Created), Bytes: r.Bytes,
		OwnerWorkspace: api.Workspace(r.Workspace), Attempt: r.Attempt,
	}
	switch r.State {
	case stateQueued, stateDeferred:
		out.Status = api.BuildQueued
	case stateDone:
		out.Status = api.BuildDone
	case stateFailed:
		out.Status = api.BuildFailed
	default:
		out.Status = api.BuildRunning
		if r.Step == publishStep {
			out.Status = api.BuildBaking
		}
	}
	if r.Started != 0 {
		t := store.Time(r.Started)
		out.RunsSince = &t
	}
	if r.Ended != 0 {
		t := store.Time(r.Ended)
		out.EndedAt = &t
	}
	if spec, err := decodeSpec(r.Spec); err == nil {
		out.SizeMB, out.CPU, out.MemoryMB, out.ImageRef, out.Tags = spec.SizeMB, spec.CPU, spec.MemoryMB,
			spec.ImageRef, spec.Tags
	}
	return out
}

// stepName returns the name of a step in logs and in the API.
func stepName(n, of int, text string) string { return fmt.Sprintf("%d/%d %s", n, of, text) }
