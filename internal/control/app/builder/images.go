package builder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/buildevent"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// ImageBuild is a template to be made for an app.
type ImageBuild struct {
	App        api.AppID
	Dockerfile string    // its text, or
	Image      string    // a reference
	Context    io.Reader // tar archive of the Dockerfile's context
	NoCache    bool
	MemoryMB   int
}

// Images makes templates of Dockerfiles and images.
type Images interface {
	// Build makes a template and passes the lines of its log on.
	Build(ctx context.Context, p auth.Principal, b ImageBuild, log func(level, step, line string)) (api.Template, error)
	// Forget removes the template of an app that was deleted.
	Forget(ctx context.Context, id api.AppID) error
}

func (w *work) images() (Images, error) {
	if w.deps.Images == nil {
		return nil, api.Errorf(api.Unsupported, "this server builds no images")
	}
	return w.deps.Images, nil
}

// fromDockerfile builds an app with the Dockerfile of its repository, whose context leaves the machine as a tar
// archive.
func (w *work) fromDockerfile(
	ctx context.Context,
	m *box,
	plan *buildevent.Plan,
	result appspec.Result,
) (app.Built, error) {
	images, err := w.images()
	if err != nil {
		return app.Built{}, err
	}
	files, pipe := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := m.stream(ctx, verbSpec("pack", contextDir), pipe, w.cfg.SourceBytes*2)
		_ = pipe.CloseWithError(err) // of a pipe it is nil
		sent <- err
	}()
	t, err := images.Build(ctx, w.Principal, ImageBuild{
		App: api.AppID(w.App.ID), Dockerfile: plan.Dockerfile, Context: files, NoCache: w.Source.NoCache,
		MemoryMB: w.Settings.MemoryMB,
	}, w.Log.Append)
	_ = files.CloseWithError(errors.Join(err, io.ErrClosedPipe)) // ends the sender, if files are left
	if e := <-sent; err == nil && !errors.Is(e, io.ErrClosedPipe) {
		err = e
	}
	if err != nil {
		return app.Built{}, err
	}
	if err := errors.Join(m.end(ctx), w.did("image")); err != nil {
		return app.Built{}, err
	}
	result.Framework = "docker"
	return w.quiet(ctx, t, result)
}

// contextDir stands for the directory that is built, as the program knows it.
const contextDir = "context"

// fromTemplate makes an app of an image or a template.
func (w *work) fromTemplate(ctx context.Context) (app.Built, error) {
	if w.Source.Kind == appspec.SourceTemplate {
		t, err := w.deps.Templates.Resolve(ctx, w.Principal, w.Settings.Template)
		if err != nil {
			return app.Built{}, err
		}
		return w.quiet(ctx, t, appspec.Result{Framework: "template"})
	}
	images, err := w.images()
	if err != nil {
		return app.Built{}, err
	}
	image := w.Source.Image
	if image == "" {
		image = w.Settings.Image
	}
	t, err := images.Build(ctx, w.Principal, ImageBuild{App: api.AppID(w.App.ID), Image: image,
		NoCache:  w.Source.NoCache,
		MemoryMB: w.Settings.MemoryMB}, w.Log.Append)
	if err != nil {
		return app.Built{}, err
	}
	if err := w.did("image"); err != nil {
		return app.Built{}, err
	}
	return w.quiet(ctx, t, appspec.Result{Framework: "image"})
}

// quiet makes the snapshot of an app that a template has: a machine of it in which nothing runs. What the template
// starts was started without the variables of the app; the app is started with them.
func (w *work) quiet(ctx context.Context, t api.Template, result appspec.Result) (app.Built, error) {
	result.Start, result.User, result.Workdir, result.Env = t.Start, t.User, t.Workdir, t.Env
	if w.Settings.StartCommand != "" {
		result.Start = w.Settings.StartCommand
	}
	if result.Start == "" {
		return app.Built{}, api.Errorf(api.Invalid,
			"start_command: template %s says nothing of how it is started: set start_command", t.Name).
			With("field", "start_command")
	}
	m, err := w.start(ctx, api.CreateRequest{Template: t.Name})
	if err != nil {
		return app.Built{}, err
	}
	running, err := m.g.Processes(ctx)
	if err != nil {
		return app.Built{}, m.lost(err)
	}
	for _, p := range running {
		if p.Exit != nil {
			continue
		}
		err := m.g.Signal(ctx, guestapi.ProcessRef{PID: p.PID}, int(unix.SIGKILL), true)
		if err != nil && !errors.Is(err, guestapi.ErrNotFound) {
			return app.Built{}, fmt.Errorf("end %s: %w", strings.Join(p.Argv, " "), m.lost(err))
		}
	}
	made, err := w.deps.Sandboxes.TakeSnapshot(ctx, w.Principal, m.id,
		api.SnapshotRequest{Metadata: w.metadata(roleBuilt)})
	if err != nil {
		return app.Built{}, err
	}
	if err := w.did("snapshot"); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		return app.Built{}, errors.Join(err, w.deps.Sandboxes.DeleteSnapshot(end, w.Principal, made.ID))
	}
	return app.Built{Snapshot: made.ID, Result: result}, nil
}
