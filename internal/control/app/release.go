package app

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app/applog"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/program"
	"github.com/pandastack/pandastack/internal/control/store"
)

// The roles of machines and snapshots that this package makes.
const (
	roleReplica = "replica"
	roleRun     = "run"
	roleReady   = "ready"
)

// The roles of machines of builds, and of what they leave.
const (
	roleBuild = "build"
	roleBuilt = "built"
)

// Further keys of their metadata.
const (
	replicaKey    = "replica"
	deploymentKey = "deployment"
)

// The steps of a deployment, as users see them.
const (
	stepBuild   = "build"
	stepRelease = "release"
	stepStart   = "start"
	stepCheck   = "check"
	stepWarm    = "warm"
	stepCapture = "capture"
)

// work is a deployment under way.
type work struct {
	row  *store.App
	d    *store.Deployment
	made deployed
	env  environment
	log  *applog.Log
}

// deployNext does the deployments of an app that have not ended, unless this process does so already.
func (s *Service) deployNext(ctx context.Context, app *store.App) error {
	l := s.of(app)
	l.asked.Store(true)
	ctx, release, ok := s.locks.TryAcquire(ctx, deployLock(app.ID))
	if !ok {
		return nil
	}
	l.asked.Store(false)
	defer func() {
		release()
		if l.asked.Swap(false) { // perhaps for a deployment that came after the last look
			s.poke()
		}
	}()
	return s.deployAll(ctx, app.ID)
}

// deployAll does the deployments of an app that have not ended. The lock of the deployments is held.
func (s *Service) deployAll(ctx context.Context, app string) error {
	if err := s.slots.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	defer s.slots.Release(1)
	for {
		row, err := s.db.Read().App(ctx, app)
		if errors.Is(err, store.ErrNotFound) || err == nil && row.State != store.AppActive {
			return nil
		}
		if err != nil {
			return err
		}
		rows, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: app, States: unended})
		if err != nil || len(rows) == 0 || s.ownedElsewhere(&row, rows) {
			return err
		}
		newestFirst(rows)
		if err := s.deploy(ctx, &row, &rows[len(rows)-1]); err != nil {
			return err
		}
	}
}

// ownedElsewhere reports whether another process on a shared store may be at work on the deployments of an app.
func (s *Service) ownedElsewhere(row *store.App, rows []store.Deployment) bool {
	if !s.db.Shared() || row.Instance == "" || row.Instance == s.instance {
		return false
	}
	for _, d := range rows {
		if d.State != unended[0] && time.Since(store.Time(d.Changed)) < s.cfg.ForeignGrace {
			return true
		}
	}
	return false
}

// deploy does a deployment to its end. An error means that it has to be continued later.
func (s *Service) deploy(ctx context.Context, row *store.App, d *store.Deployment) (err error) {
	w := &work{row: row, d: d}
	if w.made, err = decode(d); err != nil {
		return err
	}
	switch err := s.beginDeploy(ctx, w); {
	case errors.Is(err, store.ErrNotFound):
		return nil // it was superseded or canceled, or the app is being deleted
	case err != nil:
		return err
	}
	if w.env, err = s.environmentOf(ctx, row, &w.made); err == nil {
		w.log, err = s.logs.Open(ctx, d.ID, applog.Options{Masked: w.env.secrets(&w.made.set)})
	}
	if err == nil {
		heart, stop := context.WithCancel(ctx)
		beat := make(chan struct{})
		go func() {
			defer close(beat)
			s.heartbeat(heart, d.ID)
		}()
		err = s.perform(ctx, w)
		stop()
		<-beat
	}
	err = s.finishDeploy(ctx, w, err)
	if w.log != nil {
		final, cancel := detached(ctx)
		defer cancel()
		err = errors.Join(err, w.log.Close(final))
	}
	return err
}

// heartbeat writes that a deployment is being worked at, for other processes on a shared store.
func (s *Service) heartbeat(ctx context.Context, id string) {
	if !s.db.Shared() {
		return
	}
	tick := time.NewTicker(s.cfg.ForeignGrace / 5)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := s.db.Write(ctx, "app deployment heartbeat", func(ctx context.Context, tx *store.Tx) error {
			d, err := tx.Deployment(ctx, id)
			if err != nil || api.DeploymentStatus(d.State).Ended() {
				return err
			}
			d.Changed = store.Micros(time.Now())
			return tx.UpdateDeployment(ctx, &d, d.State, "changed")
		})
		if err != nil && ctx.Err() == nil {
			s.log.Warn("a deployment could not be marked as under way", "deployment", id, "err", err)
		}
	}
}

// beginDeploy writes that this process works at a deployment.
func (s *Service) beginDeploy(ctx context.Context, w *work) error {
	was := w.d.State
	if was == string(api.DeploymentQueued) {
		w.d.State = string(api.DeploymentBuilding)
		if w.d.Result != "" { // it starts what an earlier one has built
			w.d.State = string(api.DeploymentDeploying)
		}
	}
	w.d.Attempts++
	w.d.Changed = store.Micros(time.Now())
	w.row.Instance = s.instance
	err := s.db.Write(ctx, "app deployment begin", func(ctx context.Context, tx *store.Tx) error {
		if err := tx.UpdateApp(ctx, w.row, store.AppActive, "instance"); err != nil {
			return err
		}
		return tx.UpdateDeployment(ctx, w.d, was, "state", "attempts", "changed")
	})
	if err == nil {
		s.changed(ctx, w.row, w.d)
	}
	return err
}

// perform builds, starts and checks a deployment and makes it live.
func (s *Service) perform(ctx context.Context, w *work) error {
	if w.d.Attempts > int64(s.cfg.MaxAttempts) {
		return errRestarted
	}
	if err := s.clearCandidates(ctx, w); err != nil {
		return err
	}
	if w.d.State == string(api.DeploymentBuilding) {
		if err := s.build(ctx, w); err != nil {
			return err
		}
	}
	if !w.made.hasProgram() {
		if w.made.result.Static == nil {
			return api.Errorf(api.Invalid, "the build found no start command: set start_command").
				With("field", "start_command")
		}
		return s.cutOver(ctx, w.row, w.d, nil, api.DeploymentSuperseded)
	}
	r, done, err := s.newReplica(ctx, w.row, w.d)
	if err != nil {
		return err
	}
	defer done()
	if err := s.candidate(ctx, w, r); err != nil {
		return err
	}
	return s.cutOver(ctx, w.row, w.d, r, api.DeploymentSuperseded)
}

// step shows what a deployment is doing.
func (s *Service) step(ctx context.Context, w *work, step string) error {
	if w.d.Step == step {
		return nil
	}
	w.d.Step, w.d.Changed = step, store.Micros(time.Now())
	return s.db.Write(ctx, "app deployment step", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDeployment(ctx, w.d, w.d.State, "step", "changed")
	})
}

// build builds a deployment and writes what was built.
func (s *Service) build(ctx context.Context, w *work) error {
	if err := s.step(ctx, w, stepBuild); err != nil {
		return err
	}
	built, err := s.deps.Builder.Build(ctx, Build{
		Principal: as(w.row), App: *w.row, Deployment: *w.d, Settings: w.made.set, Source: w.made.source,
		Variables: w.env.vars, Log: w.log,
	})
	if err != nil {
		return err
	}
	w.made.result = built.Result
	if w.d.Result, err = appspec.Encode(built.Result); err != nil {
		return err
	}
	if built.Result.Commit != "" {
		w.d.GitCommit = built.Result.Commit
	}
	if built.Result.Message != "" {
		w.d.Message = firstLine(built.Result.Message)
	}
	w.d.Built, w.d.State = string(built.Snapshot), string(api.DeploymentDeploying)
	w.d.Changed = store.Micros(time.Now())
	err = s.db.Write(ctx, "app deployment built", func(ctx context.Context, tx *store.Tx) error {
		if err := rememberHostKeys(ctx, tx, w); err != nil {
			return err
		}
		return tx.UpdateDeployment(ctx, w.d, string(api.DeploymentBuilding), "state", "result", "built", "git_commit",
			"message", "changed")
	})
	if err == nil {
		s.changed(ctx, w.row, w.d)
	}
	return err
}

// rememberHostKeys writes the keys of the servers that a deployment was cloned from, if the app knows none of its
// repository: later ones must come from the same.
func rememberHostKeys(ctx context.Context, tx *store.Tx, w *work) error {
	if w.made.result.HostKeys == "" {
		return nil
	}
	row, err := tx.App(ctx, w.row.ID)
	if err != nil {
		return err
	}
	set, err := settingsOf(&row)
	if err != nil || set.GitHostKeys != "" || set.GitURL != w.made.set.GitURL {
		return err
	}
	set.GitHostKeys = w.made.result.HostKeys
	if row.Settings, err = appspec.Encode(set); err != nil {
		return err
	}
	return tx.UpdateApp(ctx, &row, store.AppActive, "settings")
}

// newReplica writes the row of a replica that is about to be made. Until done is called, it is being made.
func (s *Service) newReplica(
	ctx context.Context,
	row *store.App,
	d *store.Deployment,
) (r *store.Replica, done func(), err error) {
	at := store.Micros(time.Now())
	r = &store.Replica{
		ID: "rep" + strings.ToLower(rand.Text()), App: row.ID, Deployment: d.ID, State: store.ReplicaStarting,
		Created: at, Changed: at,
	}
	done = s.of(row).make(r.ID)
	err = s.db.Write(ctx, "app replica", func(ctx context.Context, tx *store.Tx) error {
		return tx.InsertReplica(ctx, r)
	})
	if err != nil {
		done()
		return nil, nil, err
	}
	return r, done, nil
}

// setMachine writes which machine a replica has.
func (s *Service) setMachine(ctx context.Context, r *store.Replica, id api.SandboxID) error {
	r.Sandbox, r.Changed = string(id), store.Micros(time.Now())
	return s.db.Write(ctx, "app replica machine", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateReplica(ctx, r, store.ReplicaStarting)
	})
}

// candidate makes the machine of the first replica of a deployment.
func (s *Service) candidate(ctx context.Context, w *work, r *store.Replica) error {
	if w.d.Ready != "" {
		return s.restore(ctx, w.row, w.d, &w.made, r)
	}
	if err := s.coldStart(ctx, w, r); err != nil {
		return err
	}
	if err := s.rehearse(ctx, w, r); err != nil {
		return err
	}
	if err := s.step(ctx, w, stepCapture); err != nil {
		return err
	}
	snap, err := s.boxes.TakeSnapshot(ctx, as(w.row), api.SandboxID(r.Sandbox), api.SnapshotRequest{
		Metadata: map[string]string{RoleKey: roleReady, deploymentKey: w.d.ID},
	})
	if err != nil {
		return err
	}
	w.d.Ready, w.d.Linked, w.d.Changed = string(snap.ID), w.env.linked, store.Micros(time.Now())
	return s.db.Write(ctx, "app deployment ready", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDeployment(ctx, w.d, string(api.DeploymentDeploying), "ready", "linked", "changed")
	})
}

// coldStart makes the machine of a replica from what was built, and starts, checks and warms the program in it.
func (s *Service) coldStart(ctx context.Context, w *work, r *store.Replica) error {
	if err := s.step(ctx, w, stepStart); err != nil {
		return err
	}
	req := machineRequest(w.d, &w.made, map[string]string{RoleKey: roleReplica, replicaKey: r.ID})
	req.Persistent = true
	box, err := s.boxes.Create(ctx, as(w.row), req)
	if err != nil {
		return err
	}
	if err := s.setMachine(ctx, r, box.ID); err != nil {
		return err
	}
	g, _, err := s.boxes.GuestAndSandbox(ctx, as(w.row), box.ID)
	if err != nil {
		return err
	}
	env := w.env.start(&w.made)
	if command := w.made.set.ReleaseCommand; command != "" {
		if err := s.runRelease(ctx, w, g, command, env); err != nil {
			return err
		}
	}
	return s.startProgram(ctx, w, r, g, env)
}

// machineRequest returns the request for a machine with what was built.
func machineRequest(d *store.Deployment, made *deployed, metadata map[string]string) api.CreateRequest {
	req := api.CreateRequest{FromSnapshot: api.SnapshotID(d.Built), Metadata: metadata, Network: made.set.Network}
	if d.Built == "" {
		req.Template = made.result.Template
	}
	return req
}

// runRelease runs the release command.
func (s *Service) runRelease(
	ctx context.Context,
	w *work,
	g guestapi.Guest,
	command string,
	env map[string]string,
) error {
	if err := s.step(ctx, w, stepRelease); err != nil {
		return err
	}
	w.log.Append(applog.Info, stepRelease, "$ "+command)
	p, err := g.Start(ctx, guestapi.ProcessSpec{Shell: command, Env: env, Dir: w.made.result.Workdir,
		User: w.made.result.User, Timeout: s.cfg.ReleaseTimeout})
	if err != nil {
		return err
	}
	defer p.Close() //nolint:errcheck // it has exited, or its machine is removed
	exit, err := program.Lines(ctx, g, guestapi.ProcessRef{PID: p.PID()}, &guestapi.Offsets{}, w.lines(stepRelease))
	switch {
	case err != nil:
		return err
	case exit.TimedOut:
		return api.Errorf(api.Timeout, "release_command: it did not end within %s", s.cfg.ReleaseTimeout)
	case exit.Code != 0:
		return api.Errorf(api.Invalid, "release_command: it exited with code %d: the log has its output", exit.Code)
	}
	return nil
}

// lines returns a function that adds the output of a program to the log.
func (w *work) lines(step string) func(guestapi.Stream, string) {
	return func(_ guestapi.Stream, text string) { w.log.Append(applog.Info, step, text) }
}

// startProgram starts the program of a replica and returns when it takes requests and is warm.
func (s *Service) startProgram(
	ctx context.Context,
	w *work,
	r *store.Replica,
	g guestapi.Guest,
	env map[string]string,
) error {
	if err := s.step(ctx, w, stepStart); err != nil {
		return err
	}
	w.log.Append(applog.Info, stepStart, "$ "+w.made.command())
	err := program.Start(ctx, g, program.Spec{Command: w.made.command(), Dir: w.made.result.Workdir,
		User: w.made.result.User, Env: env, Hook: w.made.set.RestoreHook})
	if err != nil {
		return err
	}
	exited := make(chan guestapi.Exit, 1)
	following, stop := context.WithCancel(ctx)
	followed := make(chan struct{})
	var from guestapi.Offsets
	go func() {
		defer close(followed)
		if exit, err := program.Lines(following, g, program.Ref, &from, w.lines(stepStart)); err == nil {
			exited <- exit
		}
	}()
	defer func() {
		stop()
		<-followed
		s.of(w.row).setOffsets(r.ID, from)
	}()
	if err := s.step(ctx, w, stepCheck); err != nil {
		return err
	}
	limit := s.cfg.StartTimeout
	if seconds := w.made.set.Health.TimeoutSeconds; seconds > 0 {
		limit = time.Duration(seconds) * time.Second
	}
	if err := program.Await(ctx, g, w.made.port(), w.made.set.Health, limit, exited); err != nil {
		return err
	}
	if len(w.made.set.Warm) > 0 {
		if err := s.step(ctx, w, stepWarm); err != nil {
			return err
		}
		if err := program.Warm(ctx, g, w.made.port(), w.made.set.Warm); err != nil {
			return err
		}
	}
	select {
	case exit := <-exited:
		return program.Exited(exit)
	default:
		return nil
	}
}

// finishDeploy ends a deployment that failed. An error means that it has to be continued later.
func (s *Service) finishDeploy(ctx context.Context, w *work, why error) error {
	if why == nil {
		s.log.Info("an app was deployed", "app", w.row.Name, "deployment", w.d.ID)
		return nil
	}
	final, cancel := detached(ctx)
	defer cancel()
	now, err := s.db.Read().Deployment(final, w.d.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return errors.Join(why, err)
	}
	if api.DeploymentStatus(now.State).Ended() { // it was canceled
		if w.log != nil {
			w.log.Append(applog.Warn, w.d.Step, now.Error)
		}
		return s.clearCandidates(final, w)
	}
	if ctx.Err() != nil { // this process ends, or the app is being deleted: it is continued later, or not at all
		return context.Cause(ctx)
	}
	e := api.AsError(why)
	if e.Code == api.Internal {
		s.log.Error("a deployment failed", "app", w.row.Name, "deployment", w.d.ID, "err", why)
	}
	if w.log != nil {
		w.log.Append(applog.Error, w.d.Step, e.Message)
	}
	was := now.State
	now.Step, now.Machine = w.d.Step, ""
	end(&now, api.DeploymentFailed)
	now.Code, now.Error = string(e.Code), e.Message
	err = s.db.Write(final, "app deployment failed", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDeployment(ctx, &now, was, "state", "step", "machine", "code", "error", "ended", "changed")
	})
	if err != nil {
		return errors.Join(why, err)
	}
	*w.d = now
	s.changed(final, w.row, w.d)
	return s.clearCandidates(final, w)
}

// clearCandidates removes the replicas of a deployment that were never ready.
func (s *Service) clearCandidates(ctx context.Context, w *work) error {
	all, err := s.db.Read().Replicas(ctx, w.row.ID)
	if err != nil {
		return err
	}
	for i := range all {
		if r := &all[i]; r.Deployment == w.d.ID && r.State == store.ReplicaStarting {
			if err := s.removeReplica(ctx, w.row, r); err != nil {
				return err
			}
		}
	}
	return nil
}
