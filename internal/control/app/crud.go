package app

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appenv"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/program"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/store"
)

// maxWarm is how many paths are requested before a capture.
const maxWarm = 20

// Create adds an app. Nothing is deployed.
func (s *Service) Create(ctx context.Context, p auth.Principal, req api.CreateAppRequest) (api.App, error) {
	if p.Workspace == "" {
		return api.App{}, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	if err := req.Validate(); err != nil {
		return api.App{}, err
	}
	if appspec.Reserved(req.Name, s.cfg.Suffix, s.cfg.Own) {
		return api.App{}, nameReserved(req.Name)
	}
	set := appspec.New(&req, s.cfg.Idle)
	if err := s.check(ctx, p, &set); err != nil {
		return api.App{}, api.AsError(err)
	}
	row, err := newRow(p.Workspace, req.Name, set)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	err = s.db.Write(ctx, "app create", func(ctx context.Context, tx *store.Tx) error {
		return s.insert(ctx, tx, &row, variables(row.ID, req.Env, p.KeyPrefix))
	})
	if errors.Is(err, store.ErrExists) {
		err = nameTaken(req.Name)
	}
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

func nameTaken(name string) error {
	return api.Errorf(api.Conflict, "name: there is an app %s on this server: use another name", name).
		With("field", "name")
}

func nameReserved(name string) error {
	return api.Errorf(api.Invalid, "name: %s is a host name of this server: use another name", name).
		With("field", "name")
}

// insert writes a new app with its variables.
func (s *Service) insert(ctx context.Context, tx *store.Tx, row *store.App, vars []store.AppVariable) error {
	if err := s.quotas.Admit(ctx, tx, api.Workspace(row.Workspace), quota.Amount{Kind: quota.Apps, N: 1}); err != nil {
		return err
	}
	if err := tx.InsertApp(ctx, row); err != nil {
		return err
	}
	for i := range vars {
		if err := tx.PutAppVariable(ctx, &vars[i]); err != nil {
			return err
		}
	}
	return nil
}

// newRow returns the row of a new app.
func newRow(workspace api.Workspace, name string, set appspec.Settings) (store.App, error) {
	at := store.Micros(time.Now())
	row := store.App{
		ID: string(api.NewAppID()), Workspace: string(workspace), Name: name, State: store.AppActive,
		HookSecret: rand.Text(), Repository: set.GitHubName, Created: at, Changed: at,
	}
	var err error
	if row.Settings, err = appspec.Encode(set); err != nil {
		return row, err
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return row, err
	}
	block, err := ssh.MarshalPrivateKey(key, name)
	if err != nil {
		return row, err
	}
	row.DeployKey = string(pem.EncodeToMemory(block))
	return row, nil
}

// variables returns the rows of variables for every scope.
func variables(app string, env map[string]string, creator string) (rows []store.AppVariable) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		rows = append(rows, store.AppVariable{App: app, Scope: string(api.EnvAll), Name: name, Value: env[name],
			Creator: creator, Changed: store.Micros(time.Now())})
	}
	return rows
}

// check refuses settings that this server cannot do, or that name what the caller does not have.
func (s *Service) check(ctx context.Context, p auth.Principal, set *appspec.Settings) error {
	set.Scale.Concurrency = cmp.Or(set.Scale.Concurrency, defaultConcurrency)
	if len(set.Warm) > maxWarm {
		return api.Errorf(api.Invalid, "warm: has %d paths: use at most %d", len(set.Warm), maxWarm).
			With("field", "warm")
	}
	for _, path := range set.Warm {
		if !validPath(path) {
			return api.Errorf(api.Invalid, "warm: %.100q is not a path: it begins with / and has no spaces", path).
				With("field", "warm")
		}
	}
	if hook := set.RestoreHook; hook != "" && hook != program.Signal && !validPath(hook) {
		return api.Errorf(api.Invalid, "restore_hook: %.100q is neither %s nor a path: a path begins with / and has "+
			"no spaces", hook, program.Signal).With("field", "restore_hook")
	}
	if len(set.Volumes) > 0 {
		return api.Errorf(api.Unsupported, "volumes: this server attaches no volumes to apps: leave it out").
			With("field", "volumes")
	}
	if set.Template != "" {
		_, err := s.deps.Templates.Resolve(ctx, p, set.Template)
		if api.CodeOf(err) == api.NotFound {
			err = api.Wrap(api.Invalid, err, "template: "+err.Error()).With("field", "template")
		}
		if err != nil {
			return err
		}
	}
	for _, id := range set.Databases {
		if s.deps.Databases == nil {
			return api.Errorf(api.Unsupported, "databases: this server has none: leave it out").
				With("field", "databases")
		}
		_, err := s.deps.Databases.Connection(ctx, p, id)
		if api.CodeOf(err) == api.NotFound {
			err = api.Wrap(api.Invalid, err, "databases: "+err.Error()).With("field", "databases")
		}
		if err != nil && api.CodeOf(err) != api.Unavailable { // it is being made
			return err
		}
	}
	return nil
}

// defaultConcurrency is how many requests one replica takes at a time if an app does not say.
const defaultConcurrency = 80

func validPath(path string) bool {
	return strings.HasPrefix(path, "/") && len(path) <= 2000 && !strings.ContainsFunc(path, func(r rune) bool {
		return r <= ' ' || r == 0x7f
	})
}

// Get returns an app.
func (s *Service) Get(ctx context.Context, p auth.Principal, app string) (api.App, error) {
	row, err := s.find(ctx, p, app)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	return s.show(ctx, &row)
}

// List returns the apps of the caller's workspace, newest first.
func (s *Service) List(ctx context.Context, p auth.Principal) ([]api.App, error) {
	if p.Workspace == "" {
		return nil, api.Errorf(api.Unauthenticated, "the caller has no workspace")
	}
	rows, err := s.db.Read().Apps(ctx, store.AppQuery{Workspace: string(p.Workspace), State: store.AppActive})
	if err != nil {
		return nil, api.AsError(err)
	}
	out := make([]api.App, 0, len(rows))
	for i := range rows {
		v, err := s.show(ctx, &rows[i])
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// Update changes an app.
func (s *Service) Update(
	ctx context.Context,
	p auth.Principal,
	app string,
	req api.UpdateAppRequest,
) (api.App, error) {
	if err := req.Validate(); err != nil {
		return api.App{}, err
	}
	row, ctx, release, err := s.lock(ctx, p, app)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	defer release()
	set, err := settingsOf(&row)
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	set.Apply(&req)
	if set.IdleSeconds == 0 {
		set.IdleSeconds = int64(s.cfg.Idle / time.Second)
	}
	if req.Name != nil && *req.Name != row.Name && row.PreviewOf != "" {
		return api.App{}, api.Errorf(api.Invalid, "name: a preview keeps its name").With("field", "name")
	}
	if req.Name != nil && *req.Name != row.Name {
		if appspec.Reserved(*req.Name, s.cfg.Suffix, s.cfg.Own) {
			return api.App{}, nameReserved(*req.Name)
		}
		row.Name = *req.Name
	}
	if err := s.check(ctx, p, &set); err != nil {
		return api.App{}, api.AsError(err)
	}
	if row.Settings, err = appspec.Encode(set); err != nil {
		return api.App{}, api.AsError(err)
	}
	row.Repository, row.Changed = set.GitHubName, store.Micros(time.Now())
	row.Generation++
	err = s.db.Write(ctx, "app update", func(ctx context.Context, tx *store.Tx) error {
		if other, err := tx.AppByName(ctx, row.Name); err == nil && other.ID != row.ID {
			return nameTaken(row.Name)
		}
		if req.Env != nil {
			if err := appenv.Replace(ctx, tx, row.ID, variables(row.ID, *req.Env, p.KeyPrefix)); err != nil {
				return err
			}
		}
		return tx.UpdateApp(ctx, &row, store.AppActive, "name", "settings", "repository", "changed", "generation")
	})
	if err != nil {
		return api.App{}, api.AsError(err)
	}
	s.changed(ctx, &row, nil)
	return s.show(ctx, &row)
}

// show returns an app as the API shows it.
func (s *Service) show(ctx context.Context, row *store.App) (api.App, error) {
	out, err := s.view(ctx, row)
	if err != nil {
		return out, api.AsError(err)
	}
	return out, nil
}

func (s *Service) view(ctx context.Context, row *store.App) (api.App, error) {
	set, err := settingsOf(row)
	if err != nil {
		return api.App{}, err
	}
	found, err := appspec.Decode[appspec.Result](row.Found)
	if err != nil {
		return api.App{}, err
	}
	out := api.App{
		ID: api.AppID(row.ID), Workspace: api.Workspace(row.Workspace), Name: row.Name, Error: row.Error,
		GitURL: set.GitURL, GitBranch: set.GitBranch, GitHostKeys: set.GitHostKeys, Image: set.Image,
		Framework: cmp.Or(set.Framework, found.Framework), Runtime: found.Runtime, RuntimeVersion: found.RuntimeVersion,
		InstallCommand: set.InstallCommand, BuildCommand: set.BuildCommand, StartCommand: set.StartCommand,
		ReleaseCommand: set.ReleaseCommand, RootDirectory: set.RootDirectory, OutputDirectory: set.OutputDirectory,
		Port: cmp.Or(set.Port, found.Port, DefaultPort), Template: cmp.Or(set.Template, s.cfg.Template),
		CPU: set.CPU, MemoryMB: set.MemoryMB,
		ActiveDeploymentID: api.DeploymentID(row.Deployment), URL: s.url(row.Name),
		PushURL: strings.TrimSuffix(s.cfg.URL, "/") + "/git/" + row.Name + ".git", DeployKey: publicKey(row.DeployKey),
		Scale: set.Scale, Health: set.Health, Warm: set.Warm, RestoreHook: set.RestoreHook, Databases: set.Databases,
		Volumes: set.Volumes, Networks: set.Network, AutoDeploy: set.AutoDeploy, AutoHibernate: set.AutoHibernate,
		IdleTimeoutSeconds: set.IdleSeconds, GitHubInstallationID: set.GitHubInstallation,
		GitHubRepoID: set.GitHubRepo, GitHubRepoFullName: set.GitHubName,
		CreatedAt: store.Time(row.Created), UpdatedAt: store.Time(row.Changed), Env: map[string]string{},
	}
	if row.PreviewOf != "" {
		if err := showPreview(row, &out); err != nil {
			return out, err
		}
	}
	vars, err := s.db.Read().AppVariables(ctx, row.ID)
	if err != nil {
		return out, err
	}
	for _, v := range vars {
		if v.Scope == string(api.EnvAll) {
			out.Env[v.Name] = appenv.Shown(&v)
		}
	}
	return out, s.showStatus(ctx, row, set.Scale, &out)
}

// showStatus sets what follows from the deployments and replicas of an app.
func (s *Service) showStatus(ctx context.Context, row *store.App, scale api.AppScale, out *api.App) error {
	replicas, err := s.db.Read().Replicas(ctx, row.ID)
	if err != nil {
		return err
	}
	last := store.Time(row.Used)
	if at := s.requests().LastUse(out.ID); at.After(last) {
		last = at
	}
	if last.Unix() > 0 {
		out.LastRequestAt = &last
	}
	running, sleeping := 0, 0
	for _, r := range replicas {
		if r.Deployment != row.Deployment || r.Sandbox == "" {
			continue
		}
		switch r.State {
		case store.ReplicaReady:
			out.Replicas++
			running++
			out.SandboxID = api.SandboxID(r.Sandbox)
		case store.ReplicaStarting:
			running++
		case store.ReplicaSleeping:
			sleeping++
			out.SandboxID = cmp.Or(out.SandboxID, api.SandboxID(r.Sandbox))
		case store.ReplicaAsleep:
			out.SandboxID = cmp.Or(out.SandboxID, api.SandboxID(r.Sandbox))
		}
	}
	if row.Deployment == "" {
		return s.showUndeployed(ctx, row, out)
	}
	live, err := s.db.Read().Deployment(ctx, row.Deployment)
	if err != nil {
		return err
	}
	made, err := decode(&live)
	if err != nil {
		return err
	}
	switch {
	case scale.Max == 0:
		out.Status = api.AppStopped
	case !made.hasProgram() || running > 0:
		out.Status = api.AppRunning
	case sleeping > 0:
		out.Status, out.Transition = api.AppRunning, api.AppSleeping
	case row.Error != "":
		out.Status = api.AppError
	default:
		out.Status = api.AppHibernated
		if s.of(row).isWanted() {
			out.Transition = api.AppWaking
		}
	}
	return nil
}

// showUndeployed sets the status of an app that takes no requests yet.
func (s *Service) showUndeployed(ctx context.Context, row *store.App, out *api.App) error {
	all, err := s.db.Read().Deployments(ctx, store.DeploymentQuery{App: row.ID, Limit: 20})
	if err != nil {
		return err
	}
	out.Status = api.AppCreated
	for _, d := range all {
		if !api.DeploymentStatus(d.State).Ended() {
			out.Status = api.AppBuilding
			return nil
		}
		if d.State == string(api.DeploymentFailed) && out.Status == api.AppCreated {
			out.Status, out.Error = api.AppError, d.Error
		}
	}
	return nil
}

// url returns the address of an app.
func (s *Service) url(name string) string {
	host := name + "." + s.cfg.Suffix
	if s.cfg.Port != "" {
		host = net.JoinHostPort(host, s.cfg.Port)
	}
	return s.cfg.Scheme + "://" + host
}

// publicKey returns the public half of a private key for ssh.
func publicKey(private string) string {
	signer, err := ssh.ParsePrivateKey([]byte(private))
	if err != nil {
		return "" // there is none
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}
