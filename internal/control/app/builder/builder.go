package builder

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/keyed"
)

// Config configures a Builder. Template and Program are required; zero fields mean the default.
type Config struct {
	Template    string        // of the machines of builds, if the app names none
	Program     string        // path of pandastack-build on this host
	Timeout     time.Duration // of one build; 30 min
	SourceBytes int64         // size of a source when it is unpacked; 2 GiB
	Network     *api.Network  // what builds may reach; everything that sandboxes may if nil
	Mirrors     Mirrors
	// OnStep, for tests, is called after every step of a build; an error fails the build there.
	OnStep func(step string) error
}

// Sandboxes is the part of sandbox.Service that builds use.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	TakeSnapshot(ctx context.Context, p auth.Principal, id api.SandboxID, req api.SnapshotRequest) (api.Snapshot, error)
	DeleteSnapshot(ctx context.Context, p auth.Principal, id api.SnapshotID) error
}

// Finder lists what an app has.
type Finder interface {
	Machines(ctx context.Context, p auth.Principal) ([]api.Sandbox, error)
	Snapshots(ctx context.Context, p auth.Principal) ([]api.Snapshot, error)
}

// Templates resolves names of templates.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
}

// Uploads has the archives that deployments are made of.
type Uploads interface {
	Open(ctx context.Context, app api.AppID, id string) (io.ReadCloser, error)
}

// Files keeps the files of apps that need no program.
type Files interface {
	Store(ctx context.Context, key string, tar io.Reader) error
	// Delete removes what is under key. There may be nothing.
	Delete(ctx context.Context, key string) error
}

// Deps are what a Builder uses. All are required but Images and Repositories, without which it refuses what needs them.
type Deps struct {
	Sandboxes    Sandboxes
	Finder       Finder
	Templates    Templates
	Uploads      Uploads
	Files        Files
	Images       Images
	Repositories Repositories
	Log          *slog.Logger
}

// Repositories has the repositories that are pushed to on this server.
type Repositories interface {
	// Source returns the volume with the repository of an app, to be attached to a machine of the app for reading, and
	// the path of the repository in that machine.
	Source(ctx context.Context, app api.AppID) (api.VolumeMount, string, error)
}

// Builder builds deployments. It implements app.Builder.
type Builder struct {
	cfg   Config
	deps  Deps
	locks keyed.Locks
}

var _ app.Builder = (*Builder)(nil)

// New returns a Builder.
func New(cfg Config, deps Deps) (*Builder, error) {
	if cfg.Template == "" || cfg.Program == "" || deps.Sandboxes == nil || deps.Finder == nil ||
		deps.Templates == nil ||
		deps.Uploads == nil || deps.Files == nil || deps.Log == nil {
		return nil,
			errors.New("builder: template, program, sandboxes, finder, templates, uploads, files and log are required")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 30*time.Minute)
	cfg.SourceBytes = cmp.Or(cfg.SourceBytes, 2<<30)
	return &Builder{cfg: cfg, deps: deps}, nil
}

// Build implements app.Builder.
func (b *Builder) Build(ctx context.Context, in app.Build) (_ app.Built, err error) {
	_, release, err := b.locks.Acquire(ctx, string(in.App.ID))
	if err != nil {
		return app.Built{}, err
	}
	defer release()
	limit := &api.Error{Code: api.Timeout,
		Message: fmt.Sprintf("the build took longer than %s: the server's setting apps.build_timeout bounds it",
			b.cfg.Timeout)}
	ctx, cancel := context.WithTimeoutCause(ctx, b.cfg.Timeout, limit)
	defer cancel()
	w := &work{Builder: b, Build: in}
	if err := errors.Join(w.clean(ctx), w.discard(ctx)); err != nil {
		return app.Built{}, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		if e := w.clean(end); e != nil { // the next build of the deployment or the removal of the app does it
			b.deps.Log.Warn("removing the machines of a build failed", "app", in.App.ID, "err", e)
		}
	}()
	var built app.Built
	switch in.Source.Kind {
	case appspec.SourceImage, appspec.SourceTemplate:
		built, err = w.fromTemplate(ctx)
	case appspec.SourceGit, appspec.SourcePush, appspec.SourceUpload:
		built, err = w.fromSource(ctx)
	default:
		err = api.Errorf(api.Invalid, "source: unknown kind %.20q", in.Source.Kind)
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return app.Built{}, err
	}
	return built, nil
}

// cleanTimeout bounds the removal of a build's machines.
const cleanTimeout = time.Minute

// Forget implements app.Builder. All that builds leave are machines and snapshots of the app, and templates.
func (b *Builder) Forget(ctx context.Context, id api.AppID) error {
	if b.deps.Images == nil {
		return nil
	}
	return b.deps.Images.Forget(ctx, id)
}

// The roles of what builds make, in the metadata of machines and snapshots.
const (
	roleBuild = "build" // a machine
	roleLayer = "layer" // a snapshot for later builds
	roleBuilt = "built" // the snapshot of a deployment
)

// deploymentKey is the key of the metadata with the id of the deployment.
const deploymentKey = "deployment"

// work is one build.
type work struct {
	*Builder
	app.Build
	root     string // key of the first layer
	passed   int64  // bytes of output
	silenced bool   // output is left out
	tail     []string
}

func (w *work) metadata(role string) map[string]string {
	return map[string]string{app.RoleKey: role, deploymentKey: string(w.Deployment.ID)}
}

// did calls the hook of tests.
func (w *work) did(step string) error {
	if w.cfg.OnStep == nil {
		return nil
	}
	return w.cfg.OnStep(step)
}

// discard removes the snapshot of an earlier call for the deployment, whose process ended before it returned.
func (w *work) discard(ctx context.Context) error {
	all, err := w.deps.Finder.Snapshots(ctx, w.Principal)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Metadata[app.RoleKey] != roleBuilt || s.Metadata[deploymentKey] != string(w.Deployment.ID) {
			continue
		}
		err := w.deps.Sandboxes.DeleteSnapshot(ctx, w.Principal, s.ID)
		if err != nil && api.CodeOf(err) != api.NotFound {
			return err
		}
	}
	return nil
}

// clean removes the machines of builds of this deployment.
func (w *work) clean(ctx context.Context) error {
	boxes, err := w.deps.Finder.Machines(ctx, w.Principal)
	if err != nil {
		return err
	}
	var all error
	for _, box := range boxes {
		if box.Metadata[app.RoleKey] != roleBuild || box.Metadata[deploymentKey] != string(w.Deployment.ID) {
			continue
		}
		if err := w.deps.Sandboxes.Delete(ctx, w.Principal, box.ID); err != nil && api.CodeOf(err) != api.NotFound {
			all = errors.Join(all, err)
		}
	}
	return all
}

// request is what every run of the program in a machine gets.
func (w *work) request() buildevent.Request {
	s := w.Settings
	r := buildevent.Request{
		Settings: buildevent.Settings{Framework: s.Framework, InstallCommand: s.InstallCommand,
			BuildCommand: s.BuildCommand,
			StartCommand: s.StartCommand, RootDirectory: s.RootDirectory, OutputDirectory: s.OutputDirectory},
		Variables: map[string]string{}, Env: w.cfg.Mirrors.Env,
		Limits: buildevent.Limits{SourceBytes: w.cfg.SourceBytes},
	}
	if !w.Source.Untrusted {
		for _, v := range w.Variables {
			r.Variables[v.Name] = v.Value
		}
	}
	return r
}

// digest returns a hash of parts.
func digest(parts ...string) string {
	sum := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(sum, "%d %s\n", len(p), p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// fileDigest returns a hash of a file of this host.
func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return hex.EncodeToString(sum.Sum(nil)), err
}
