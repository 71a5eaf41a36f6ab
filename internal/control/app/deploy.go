package app

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// unended are the states of deployments that have work to be done.
var unended = []string{
	string(api.DeploymentQueued), string(api.DeploymentBuilding), string(api.DeploymentDeploying),
}

// maxDeployments is how many deployments of an app are listed, and kept with their logs.
const maxDeployments = 100

// Causes with which a deployment under way ends.
var (
	errCanceled   = api.Errorf(api.Canceled, "the deployment was canceled")
	errRolledBack = api.Errorf(api.Canceled, "a rollback took its place")
	errDeleted    = api.Errorf(api.NotFound, "the app was deleted")
	errRestarted  = api.Errorf(api.Unavailable,
		"the server was restarted in the middle of the deployment too often: deploy again")
)

// deployLock is the name of the lock of an app's deployments. The lock with the app's id is taken after it.
func deployLock(app string) string { return "deploy/" + app }

// Deploy queues a deployment of an app. Those of the app that are queued are superseded.
func (s *Service) Deploy(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.DeployRequest,
) (api.Deployment, error) {
	if err := req.Validate(); err != nil {
		return api.Deployment{}, err
	}
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	if req.Restart {
		return s.restart(ctx, &row, p.KeyPrefix, "restart")
	}
	src, err := s.sourceOf(ctx, &row, req)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	return s.enqueue(ctx, &row, store.Deployment{Creator: p.KeyPrefix}, src)
}

// DeployFrom queues a deployment of a source.
func (s *Service) DeployFrom(
	ctx context.Context,
	p auth.Principal,
	app api.AppID,
	src appspec.Source,
	message string,
) (api.Deployment, error) {
	row, err := s.find(ctx, p, string(app))
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	return s.enqueue(ctx, &row, store.Deployment{Creator: p.KeyPrefix, Message: firstLine(message)}, src)
}

// firstLine returns the first line of a message, cut to what is shown of it.
func firstLine(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return strings.ToValidUTF8(text[:min(len(text), 200)], "")
}

// sourceOf returns what a request asks to deploy.
func (s *Service) sourceOf(ctx context.Context, row *store.App, req api.DeployRequest) (appspec.Source, error) {
	set, err := settingsOf(row)
	if err != nil {
		return appspec.Source{}, err
	}
	switch {
	case req.Upload != "":
		if s.deps.HasUpload == nil {
			return appspec.Source{}, api.Errorf(api.Unsupported, "upload: this server takes no uploads")
		}
		if err := s.deps.HasUpload(ctx, api.AppID(row.ID), req.Upload); err != nil {
			return appspec.Source{}, err
		}
		return appspec.Source{Kind: appspec.SourceUpload, Upload: req.Upload, NoCache: req.NoCache}, nil
	case set.Image != "":
		return appspec.Source{Kind: appspec.SourceImage, Image: set.Image, NoCache: req.NoCache}, nil
	case set.GitURL != "":
		return appspec.Source{Kind: appspec.SourceGit, Ref: cmp.Or(req.GitRef, set.GitBranch),
			NoCache: req.NoCache}, nil
	}
	last, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, Limit: 1})
	if err != nil {
		return appspec.Source{}, err
	}
	if len(last) == 0 {
		return appspec.Source{}, api.Errorf(api.WrongState, "app %s has nothing to deploy: set git_url or image, push "+
			"to it, or send an upload", row.Name)
	}
	src, err := appspec.Decode[appspec.Source](last[0].Source)
	src.NoCache = req.NoCache
	if req.GitRef != "" {
		src.Ref, src.Commit = req.GitRef, ""
	}
	return src, err
}

// restart queues a deployment that starts what is live with the environment of now.
func (s *Service) restart(ctx context.Context, row *store.App, creator, message string) (api.Deployment, error) {
	if row.Deployment == "" {
		return api.Deployment{}, api.Errorf(api.WrongState, "app %s has no live deployment: deploy it first", row.Name)
	}
	live, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	made, err := decode(&live)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	return s.enqueue(ctx, row, store.Deployment{
		Creator: creator, Message: message, GitRef: live.GitRef, GitCommit: live.GitCommit, Built: live.Built,
		Result: live.Result,
	}, made.source)
}

// enqueue writes a queued deployment.
func (s *Service) enqueue(
	ctx context.Context,
	row *store.App,
	d store.Deployment,
	src appspec.Source,
) (api.Deployment, error) {
	var err error
	if d.Source, err = appspec.Encode(src); err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	at := store.Micros(time.Now())
	d.ID, d.App, d.Workspace = string(api.NewDeploymentID()), row.ID, row.Workspace
	d.State, d.Created, d.Changed = string(api.DeploymentQueued), at, at
	d.GitRef, d.GitCommit = cmp.Or(d.GitRef, src.Ref), cmp.Or(d.GitCommit, src.Commit)
	var gone []store.Deployment
	err = s.db.Write(ctx, "app deploy", func(ctx context.Context, tx *store.Tx) error {
		now, err := tx.App(ctx, row.ID)
		if err != nil {
			return err
		}
		if now.State != store.AppActive {
			return errDeleted
		}
		if gone, err = supersede(ctx, tx, row.ID); err != nil {
			return err
		}
		now.Numbered++
		d.Number, d.Settings = now.Numbered, now.Settings
		*row = now
		if err := tx.UpdateApp(ctx, &now, store.AppActive, "numbered"); err != nil {
			return err
		}
		return tx.InsertDeployment(ctx, &d)
	})
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	for i := range gone {
		s.changed(ctx, row, &gone[i])
	}
	s.changed(ctx, row, &d)
	return s.viewDeployment(row, &d), nil
}

// supersede ends the queued deployments of an app.
func supersede(ctx context.Context, tx *store.Tx, app string) ([]store.Deployment, error) {
	queued, err := tx.Deployments(ctx, store.DeploymentQuery{App: app, States: unended[:1]})
	for i := range queued {
		d := &queued[i]
		end(d, api.DeploymentSuperseded)
		if err := tx.UpdateDeployment(ctx, d, string(api.DeploymentQueued), "state", "ended", "changed"); err != nil {
			return nil, err
		}
	}
	return queued, err
}

// end makes a row one of a deployment that has ended, or that is live.
func end(d *store.Deployment, state api.DeploymentStatus) {
	d.State, d.Changed = string(state), store.Micros(time.Now())
	d.Ended = d.Changed
}

// Deployments returns the newest deployments of an app, newest first.
func (s *Service) Deployments(ctx context.Context, p auth.Principal, app string) ([]api.Deployment, error) {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return nil, api.AsError(err)
	}
	rows, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, Limit: maxDeployments})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.Deployment, 0, len(rows))
	for i := range rows {
		out = append(out, s.viewDeployment(&row, &rows[i]))
	}
	return out, nil
}

// tailLines is how many lines of its log a deployment is shown with.
const tailLines = 200

// Deployment returns one deployment, with the end of its log.
func (s *Service) Deployment(
	ctx context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
) (api.Deployment, error) {
	row, d, err := s.findDeployment(ctx, p, app, id)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	out := s.viewDeployment(&row, &d)
	lines, err := s.logs.Tail(ctx, d.ID, tailLines)
	if err != nil {
		return out, api.AsError(err)
	}
	var text strings.Builder
	for _, l := range lines {
		text.WriteString(l.Line + "\n")
	}
	out.BuildLogs = text.String()
	return out, nil
}

func (s *Service) findDeployment(
	ctx context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
) (row store.App, d store.Deployment, err error) {
	if row, err = s.find(ctx, p, app); err != nil {
		return row, d, err
	}
	d, err = s.db.Read().Deployment(ctx, string(id))
	if errors.Is(err, store.ErrNotFound) || err == nil && d.App != row.ID {
		return row, d, api.Errorf(api.NotFound, "deployment %.60s of app %s not found", string(id), row.Name)
	}
	return row, d, err
}

func (s *Service) viewDeployment(row *store.App, d *store.Deployment) api.Deployment {
	out := api.Deployment{
		ID: api.DeploymentID(d.ID), AppID: api.AppID(d.App), Workspace: api.Workspace(d.Workspace),
		Number: int(d.Number), Status: api.DeploymentStatus(d.State), GitCommit: d.GitCommit, GitRef: d.GitRef,
		Message: d.Message, SandboxID: api.SandboxID(d.Machine), Error: d.Error, Code: api.Code(d.Code), Step: d.Step,
		CreatedBy: d.Creator, CreatedAt: store.Time(d.Created), UpdatedAt: store.Time(d.Changed),
		Kept: d.ID != row.Deployment && canReturn(d),
	}
	if d.Ended != 0 {
		at := store.Time(d.Ended)
		out.FinishedAt = &at
	}
	return out
}

// canReturn reports whether a deployment that was live can be so again without a build.
func canReturn(d *store.Deployment) bool {
	if d.State != string(api.DeploymentSuperseded) && d.State != string(api.DeploymentRolledBack) {
		return false
	}
	if d.Ready != "" {
		return true
	}
	made, err := decode(d)
	return err == nil && !made.hasProgram() && made.result.Static != nil
}

// CancelDeployment ends a deployment that is queued or under way. What is live stays.
func (s *Service) CancelDeployment(
	ctx context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
) (api.Deployment, error) {
	row, d, err := s.findDeployment(ctx, p, app, id)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	if api.DeploymentStatus(d.State).Ended() {
		return api.Deployment{}, api.Errorf(api.WrongState, "deployment %s has ended: it is %s", id, d.State)
	}
	if err := s.cancel(ctx, &row, &d, errCanceled); err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	return s.Deployment(ctx, p, row.ID, id)
}

// cancel ends a deployment that has not ended, and the work on it. It waits until that has stopped.
func (s *Service) cancel(ctx context.Context, row *store.App, d *store.Deployment, why *api.Error) error {
	err := s.db.Write(ctx, "app deployment cancel", func(ctx context.Context, tx *store.Tx) error {
		now, err := tx.Deployment(ctx, d.ID)
		if err != nil {
			return err
		}
		*d = now
		if api.DeploymentStatus(now.State).Ended() {
			return nil
		}
		was := now.State
		end(&now, api.DeploymentFailed)
		now.Code, now.Error = string(why.Code), why.Message
		*d = now
		return tx.UpdateDeployment(ctx, d, was, "state", "code", "error", "ended", "changed")
	})
	if err != nil {
		return err
	}
	s.changed(ctx, row, d)
	_, release, err := s.interrupt(ctx, deployLock(row.ID), why)
	if err != nil {
		return err
	}
	release()
	s.poke() // for the next one, and for what it has left
	return nil
}

// interrupt ends the holder of a lock and takes it.
func (s *Service) interrupt(ctx context.Context, name string, why error) (context.Context, func(), error) {
	s.locks.Interrupt(name, why)
	for {
		op, release, err := s.locks.Acquire(ctx, name)
		if !errors.Is(err, why) {
			return op, release, err
		}
	}
}

// BuildLog calls yield with the lines of a deployment's log above the number after. With follow it returns when the
// deployment has ended or is live.
func (s *Service) BuildLog(
	ctx context.Context,
	p auth.Principal,
	app string,
	id api.DeploymentID,
	after int64,
	follow bool,
	yield func(api.AppLogLine) error,
) error {
	_, d, err := s.findDeployment(ctx, p, app, id)
	if err != nil {
		return api.AsError(err)
	}
	var ended func(context.Context) (bool, error)
	if follow {
		ended = func(ctx context.Context) (bool, error) {
			now, err := s.db.Read().Deployment(ctx, d.ID)
			return err == nil && api.DeploymentStatus(now.State).Ended(), err
		}
	}
	return s.logs.Read(ctx, d.ID, after, ended, func(l store.AppLogLine) error {
		return yield(api.AppLogLine{Seq: l.Number, Time: store.Time(l.Created), Level: l.Level, Step: l.Step,
			Line: l.Line})
	})
}

// runtimeLines is how many of the newest lines of an app's output are read when a reader comes.
const runtimeLines = 1000

// RuntimeLog calls yield with what the replicas of an app printed lately.
//
// With follow it continues with what they print until ctx ends. It wakes none.
func (s *Service) RuntimeLog(
	ctx context.Context,
	p auth.Principal,
	app string,
	follow bool,
	yield func(api.AppOutput) error,
) error {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.AsError(err)
	}
	after := int64(0)
	send := func(l store.AppLogLine) error {
		after = l.Number
		return yield(api.AppOutput{SandboxID: api.SandboxID(l.Step), Stream: streamOf(l.Level), Line: l.Line})
	}
	lines, err := s.logs.Tail(ctx, row.ID, runtimeLines)
	if err != nil {
		return api.AsError(err)
	}
	for _, l := range lines {
		if err := send(l); err != nil {
			return err
		}
	}
	if !follow {
		return nil
	}
	return s.logs.Read(ctx, row.ID, after, func(ctx context.Context) (bool, error) {
		_, err := s.db.Read().App(ctx, row.ID)
		return errors.Is(err, store.ErrNotFound), nil
	}, send)
}

// streamOf returns the stream of a line of output.
func streamOf(level string) string {
	if level == applog.Info {
		return "stdout"
	}
	return "stderr"
}

// newestFirst sorts deployments by their number.
func newestFirst(all []store.Deployment) {
	slices.SortFunc(all, func(a, b store.Deployment) int { return cmp.Compare(b.Number, a.Number) })
}
