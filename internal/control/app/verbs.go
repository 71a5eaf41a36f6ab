package app

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Rollback makes an earlier deployment live again, with the environment that it had. Deployments that have not ended
// are canceled.
func (s *Service) Rollback(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.RollbackRequest,
) (api.Deployment, error) {
	row, err := s.find(ctx, p, app)
	if err == nil {
		err = req.Validate()
	}
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	if _, err := s.target(ctx, &row, req.DeploymentID); err != nil { // before anything is canceled
		return api.Deployment{}, api.AsError(err)
	}
	pending, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, States: unended})
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	for i := range pending {
		if err := s.cancel(ctx, &row, &pending[i], errRolledBack); err != nil {
			return api.Deployment{}, api.AsError(err)
		}
	}
	ctx, release, err := s.interrupt(ctx, deployLock(row.ID), errRolledBack)
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	defer s.poke() // for deployments that came meanwhile
	defer release()
	if row, err = s.find(ctx, p, row.ID); err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	d, err := s.target(ctx, &row, req.DeploymentID)
	if err == nil {
		err = s.rollBack(ctx, &row, &d)
	}
	if err != nil {
		return api.Deployment{}, api.AsError(err)
	}
	return s.viewDeployment(&row, &d), nil
}

// target finds the deployment that an app goes back to.
func (s *Service) target(ctx context.Context, row *store.App, id api.DeploymentID) (d store.Deployment, err error) {
	rows, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID})
	if err != nil {
		return d, err
	}
	newestFirst(rows)
	live := int64(0)
	for i := range rows {
		if rows[i].ID == row.Deployment {
			live = rows[i].Number
		}
	}
	for i := range rows {
		d := &rows[i]
		switch {
		case id == "" && d.Number < live && canReturn(d):
			return *d, nil
		case id == "" || d.ID != string(id):
		case d.ID == row.Deployment:
			return *d, api.Errorf(api.WrongState, "deployment %s is live already", id)
		case !canReturn(d):
			return *d, api.Errorf(api.WrongState, "deployment %s is %s and not kept: deploy its commit again", id,
				d.State)
		default:
			return *d, nil
		}
	}
	if id != "" {
		return d, api.Errorf(api.NotFound, "deployment %.60s of app %s not found", string(id), row.Name)
	}
	return d, api.Errorf(api.WrongState, "app %s has no earlier deployment that is kept", row.Name)
}

// rollBack makes an earlier deployment live. The lock of the deployments is held.
func (s *Service) rollBack(ctx context.Context, row *store.App, d *store.Deployment) error {
	made, err := decode(d)
	if err != nil {
		return err
	}
	if !made.hasProgram() {
		return s.cutOver(ctx, row, d, nil, api.DeploymentRolledBack)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.WakeTimeout,
		api.Errorf(api.Unavailable, "the earlier deployment did not start within %s", s.cfg.WakeTimeout))
	defer cancel()
	r, done, err := s.newReplica(ctx, row, d)
	if err != nil {
		return err
	}
	defer done()
	if err = s.restore(ctx, row, d, &made, r); err == nil {
		err = s.cutOver(ctx, row, d, r, api.DeploymentRolledBack)
	}
	if err != nil {
		final, cancel := detached(ctx)
		defer cancel()
		return errors.Join(err, s.removeReplica(final, row, r))
	}
	return nil
}

// RunCommand makes a machine of the live deployment in which a command runs once.
//
// The command is returned with the variables of the app. End removes the machine.
func (s *Service) RunCommand(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.AppRunRequest,
) (g guestapi.Guest, command api.ExecRequest, end func(), err error) {
	if err := req.Validate(); err != nil {
		return nil, command, nil, err
	}
	row, err := s.find(ctx, p, app)
	if err != nil {
		return nil, command, nil, api.AsError(err)
	}
	if g, command, end, err = s.run(ctx, &row, req); err != nil {
		return nil, command, nil, api.AsError(err)
	}
	return g, command, end, nil
}

// runTTL is how long the machine of a command outlives its last use if its process on the server ends.
const runTTL = 10 * time.Minute

func (s *Service) run(
	ctx context.Context,
	row *store.App,
	req api.AppRunRequest,
) (g guestapi.Guest, command api.ExecRequest, end func(), err error) {
	if row.Deployment == "" {
		return nil, command, nil, api.Errorf(api.WrongState, "app %s has no live deployment: deploy it first", row.Name)
	}
	d, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil {
		return nil, command, nil, err
	}
	made, err := decode(&d)
	if err != nil {
		return nil, command, nil, err
	}
	if !made.hasProgram() {
		return nil, command, nil, api.Errorf(api.WrongState, "app %s is files alone: there is no machine to run in",
			row.Name)
	}
	env, err := s.environmentOf(ctx, row, &made)
	if err != nil {
		return nil, command, nil, err
	}
	ask := machineRequest(&d, &made, map[string]string{RoleKey: roleRun})
	ask.TTLSeconds = new(int64(runTTL / time.Second))
	box, err := s.boxes.Create(ctx, as(row), ask)
	if err != nil {
		return nil, command, nil, err
	}
	end = func() {
		ctx, cancel := detached(ctx)
		defer cancel()
		if err := s.boxes.Delete(ctx, as(row), box.ID); err != nil {
			s.log.Warn("the machine of a command is not removed yet; it ends by itself", "app", row.Name, "err", err)
		}
	}
	if g, _, err = s.boxes.GuestAndSandbox(ctx, as(row), box.ID); err != nil {
		end()
		return nil, command, nil, err
	}
	return g, api.ExecRequest{
		Cmd: req.Command, TimeoutSeconds: float64(cmp.Or(req.TimeoutSeconds, defaultRunSeconds)), Env: env.start(&made),
		Cwd: made.result.Workdir, User: made.result.User,
	}, end, nil
}

// defaultRunSeconds is the limit of a command if its caller names none.
const defaultRunSeconds = 600

// Stats returns what an app did lately.
func (s *Service) Stats(ctx context.Context, p auth.Principal, app string) (api.AppStats, error) {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.AppStats{}, api.AsError(err)
	}
	out := s.requests().Stats(api.AppID(row.ID))
	all, err := s.replicasOf(ctx, &row)
	if err != nil {
		return out, api.AsError(err)
	}
	for _, r := range all {
		if r.State == store.ReplicaReady {
			out.Replicas++
		}
	}
	l := s.of(&row)
	l.mu.Lock()
	defer l.mu.Unlock()
	out.Hibernates, out.Restarts = l.sleeps, l.restarts
	if out.Since.IsZero() {
		out.Since = s.began
	}
	return out, nil
}

// previewName returns the name of the preview of a pull request.
func previewName(app string, number int) string { return "pr-" + strconv.Itoa(number) + "--" + app }

// CreatePreview returns the preview of a pull request of an app, and makes it if there is none.
func (s *Service) CreatePreview(
	ctx context.Context,
	p auth.Principal,
	of api.AppID,
	pr appspec.PullRequest,
) (api.App, error) {
	parent, err := s.find(ctx, p, string(of))
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	known, err := s.db.Read().Apps(ctx, store.AppQuery{PreviewOf: parent.ID, State: store.AppActive})
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	for i := range known {
		if known[i].PullRequest == int64(pr.Number) {
			return s.UpdatePreview(ctx, p, api.AppID(known[i].ID), pr)
		}
	}
	row, err := newPreview(&parent, pr)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	err = s.db.Write(ctx, "app preview create", func(ctx context.Context, tx *store.Tx) error {
		return s.insert(ctx, tx, &row, nil)
	})
	if errors.Is(err, store.ErrExists) {
		err = nameTaken(row.Name)
	}
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// newPreview returns the row of the preview of a pull request.
func newPreview(parent *store.App, pr appspec.PullRequest) (row store.App, err error) {
	set, err := settingsOf(parent)
	if err != nil {
		return row, err
	}
	set.GitURL, set.GitBranch, set.AutoDeploy = cmp.Or(pr.CloneURL, set.GitURL), cmp.Or(pr.SHA, pr.Branch), false
	set.Scale = api.AppScale{Max: 1, Concurrency: set.Scale.Concurrency}
	set.Volumes, set.GitHubRepo = nil, cmp.Or(pr.RepoID, set.GitHubRepo)
	if pr.Fork { // a stranger wrote it
		set.GitToken, set.Databases, set.ReleaseCommand = "", nil, ""
	}
	if row, err = newRow(api.Workspace(parent.Workspace), previewName(parent.Name, pr.Number), set); err != nil {
		return row, err
	}
	row.PreviewOf, row.PullRequest, row.Repository = parent.ID, int64(pr.Number), ""
	row.Preview, err = appspec.Encode(pr)
	return row, err
}

// UpdatePreview writes the pull request of a preview as it is.
func (s *Service) UpdatePreview(
	ctx context.Context,
	p auth.Principal,
	app api.AppID,
	pr appspec.PullRequest,
) (api.App, error) {
	row, ctx, release, err := s.lock(ctx, p, string(app))
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	defer release()
	if row.PreviewOf == "" {
		return api.App{}, api.Errorf(api.WrongState, "app %s is not a preview", row.Name)
	}
	set, err := settingsOf(&row)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	set.GitBranch = cmp.Or(pr.SHA, pr.Branch)
	if row.Settings, err = appspec.Encode(set); err != nil {
		return api.App{}, api.AsError(err)
	}
	if row.Preview, err = appspec.Encode(pr); err != nil {
		return api.App{}, api.AsError(err)
	}
	row.Changed = store.Micros(time.Now())
	err = s.db.Write(ctx, "app preview update", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateApp(ctx, &row, store.AppActive, "settings", "preview", "changed")
	})
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// showPreview sets what an app shows of its pull request.
func showPreview(row *store.App, out *api.App) error {
	pr, err := appspec.Decode[appspec.PullRequest](row.Preview)
	if err != nil {
		return err
	}
	out.IsPreview, out.PreviewOf, out.PreviewURL = true, api.AppID(row.PreviewOf), out.URL
	out.PRNumber, out.PRState, out.HeadSHA, out.RepoFullName = pr.Number, pr.State, pr.SHA, pr.Repo
	return nil
}
