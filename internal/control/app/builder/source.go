package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
)

// fromSource builds an app from files.
func (w *work) fromSource(ctx context.Context) (app.Built, error) {
	first, err := w.first(ctx)
	if err != nil {
		return app.Built{}, err
	}
	source, result, plan, err := w.planned(ctx, first)
	if err != nil {
		return app.Built{}, err
	}
	if plan.Dockerfile != "" {
		return w.fromDockerfile(ctx, source, plan, result)
	}
	target, begin, err := w.begin(ctx, first, plan)
	if err != nil {
		return app.Built{}, err
	}
	if err := source.pass(ctx, target); err != nil {
		return app.Built{}, err
	}
	if err := errors.Join(source.end(ctx), w.did("source")); err != nil {
		return app.Built{}, err
	}
	if err := w.steps(ctx, target, plan, begin); err != nil {
		return app.Built{}, err
	}
	result.Steps, result.StepsCached = len(plan.Steps), begin
	return w.finish(ctx, target, plan, result)
}

// planned makes a machine with the source and the plan.
func (w *work) planned(ctx context.Context, first api.SnapshotID) (*box, appspec.Result, *buildevent.Plan, error) {
	var result appspec.Result
	fail := func(err error) (*box, appspec.Result, *buildevent.Plan, error) { return nil, result, nil, err }
	req := w.request()
	create := api.CreateRequest{FromSnapshot: first}
	if w.Source.Kind == appspec.SourcePush {
		if w.deps.Repositories == nil {
			return fail(api.Errorf(api.Unsupported, "this server has no repositories"))
		}
		mount, path, err := w.deps.Repositories.Source(ctx, api.AppID(w.App.ID))
		if err != nil {
			return fail(err)
		}
		create.Volumes = []api.VolumeMount{mount}
		req.Git = &buildevent.Git{URL: path}
	}
	if w.Source.Kind == appspec.SourceGit {
		s := w.Settings
		req.Git = &buildevent.Git{URL: s.GitURL, Submodules: s.Submodules, LFS: s.LFS, HostKeys: s.GitHostKeys}
		if !w.Source.Untrusted {
			req.Git.Token, req.Git.Key = s.GitToken, w.App.DeployKey
		}
	}
	m, err := w.start(ctx, create)
	if err != nil {
		return fail(err)
	}
	if err := w.bring(ctx, m, req, &result); err != nil {
		return fail(err)
	}
	if err := w.did("fetch"); err != nil {
		return fail(err)
	}
	var plan *buildevent.Plan
	req.Git = nil
	err = m.run(ctx, "plan", jsonInput(req), func(e buildevent.Event) {
		if e.Plan != nil {
			plan = e.Plan
		}
	})
	if err == nil && plan == nil {
		err = errNoReply
	}
	if err != nil {
		return fail(err)
	}
	return m, result, plan, w.did("plan")
}

// errNoReply is the error of a program that ended well without saying what it is run for: it is not ours.
var errNoReply = api.Errorf(api.Unavailable, "the machine of the build did not say what it found: deploy again")

// bring brings the source into a machine.
func (w *work) bring(ctx context.Context, m *box, req buildevent.Request, result *appspec.Result) error {
	if w.Source.Kind == appspec.SourceUpload {
		archive, err := w.deps.Uploads.Open(ctx, api.AppID(w.App.ID), w.Source.Upload)
		if err != nil {
			return err
		}
		defer archive.Close() //nolint:errcheck // it was only read
		return m.feed(ctx, "unpack", func(_ context.Context, to io.Writer) error {
			_, err := io.Copy(to, archive)
			return err
		})
	}
	req.Git.Ref, req.Git.Commit = cmp.Or(w.Source.Ref, w.Settings.GitBranch), w.Source.Commit
	return m.run(ctx, "clone", jsonInput(req), func(e buildevent.Event) {
		if e.Source != nil {
			result.Commit, result.Message = e.Source.Commit, e.Source.Message
			result.HostKeys = e.Source.HostKeys
		}
	})
}

// key is the key of the layer after a step.
func (w *work) key(s buildevent.Step) string {
	return digest(w.root, s.Key, fmt.Sprint(w.Source.Untrusted))
}

// begin makes the machine that executes a plan: from the layer of the last step that need not run again. It returns the
// index of the first step to run.
func (w *work) begin(ctx context.Context, first api.SnapshotID, plan *buildevent.Plan) (*box, int, error) {
	from, next := first, 0
	if !w.Source.NoCache {
		known, err := w.layers(ctx)
		if err != nil {
			return nil, 0, err
		}
		for i, s := range plan.Steps {
			if id := known[w.key(s)]; s.Keep && id != "" {
				from, next = id, i+1
			}
		}
	}
	for _, s := range plan.Steps[:next] {
		w.Log.Append(buildevent.LevelInfo, s.Name, "unchanged: taken from an earlier build")
	}
	m, err := w.start(ctx, api.CreateRequest{FromSnapshot: from})
	return m, next, err
}

// steps runs the steps of a plan from an index on, and keeps what is worth it.
func (w *work) steps(ctx context.Context, m *box, plan *buildevent.Plan, begin int) error {
	for i := begin; i < len(plan.Steps); i++ {
		s := plan.Steps[i]
		req := w.request()
		req.Step = i
		if err := m.run(ctx, "step", jsonInput(req), nil); err != nil {
			return err
		}
		if err := w.did("step " + s.Name); err != nil {
			return err
		}
		if !s.Keep {
			continue
		}
		// A layer is an advantage for the next build only: this one goes on without it.
		if _, err := m.keep(ctx, w.key(s)); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			w.Log.Append(buildevent.LevelWarn, s.Name,
				"the step could not be kept for later builds: "+api.AsError(err).Message)
		}
		if err := w.did("layer " + s.Name); err != nil {
			return err
		}
	}
	return nil
}

// finish makes the result of a build whose steps have run.
func (w *work) finish(
	ctx context.Context,
	m *box,
	plan *buildevent.Plan,
	result appspec.Result,
) (app.Built, error) {
	var found *buildevent.Result
	err := m.run(ctx, "finish", jsonInput(w.request()), func(e buildevent.Event) {
		if e.Result != nil {
			found = e.Result
		}
	})
	if err == nil && found == nil {
		err = errNoReply
	}
	if err != nil {
		return app.Built{}, err
	}
	result.Framework, result.Runtime, result.RuntimeVersion = found.Framework, found.Runtime, found.RuntimeVersion
	result.Start, result.Workdir, result.User, result.Port = found.Start, found.Workdir, "root", found.Port
	result.Env = map[string]string{}
	maps.Copy(result.Env, w.cfg.Mirrors.runtime())
	maps.Copy(result.Env, found.Env)
	if err := w.did("finish"); err != nil {
		return app.Built{}, err
	}
	if found.Static != nil {
		return w.static(ctx, m, plan, found.Static, result)
	}
	snapshot, err := w.deps.Sandboxes.TakeSnapshot(ctx, w.Principal, m.id,
		api.SnapshotRequest{Metadata: w.metadata(roleBuilt)})
	if err != nil {
		return app.Built{}, err
	}
	err = w.did("snapshot")
	if err == nil {
		err = w.prune(ctx, plan)
	}
	if err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		return app.Built{}, errors.Join(err, w.deps.Sandboxes.DeleteSnapshot(end, w.Principal, snapshot.ID))
	}
	return app.Built{Snapshot: snapshot.ID, Result: result}, nil
}

// static copies the files of an app that has no program to where the edge serves them from.
func (w *work) static(
	ctx context.Context,
	m *box,
	plan *buildevent.Plan,
	found *buildevent.Static,
	result appspec.Result,
) (app.Built, error) {
	key := string(w.Deployment.ID)
	files, pipe := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := m.stream(ctx, verbSpec("pack", found.Dir), pipe, w.cfg.SourceBytes)
		_ = pipe.CloseWithError(err) // of a pipe it is nil
		sent <- err
	}()
	err := w.deps.Files.Store(ctx, key, files)
	_ = files.CloseWithError(err) // ends the sender, if files are left
	if e := <-sent; err == nil {
		err = e
	}
	if err == nil {
		err = errors.Join(w.did("files"), w.prune(ctx, plan))
	}
	if err != nil {
		return app.Built{}, errors.Join(err, w.deps.Files.Delete(context.WithoutCancel(ctx), key))
	}
	result.Start = ""
	result.Static = &appspec.Static{Dir: found.Dir, SPA: found.SPA, NotFound: found.NotFound, Files: key}
	return app.Built{Result: result}, nil
}

// prune removes layers that this build did not use or make. One that a machine still needs stays until a later build.
func (w *work) prune(ctx context.Context, plan *buildevent.Plan) error {
	known, err := w.layers(ctx)
	if err != nil {
		return err
	}
	delete(known, w.root)
	for _, s := range plan.Steps {
		delete(known, w.key(s))
	}
	for _, id := range known {
		err := w.deps.Sandboxes.DeleteSnapshot(ctx, w.Principal, id)
		if code := api.CodeOf(err); err != nil && code != api.NotFound && code != api.Conflict {
			return err
		}
	}
	return w.did("prune")
}
