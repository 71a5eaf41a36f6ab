// Package appimage makes templates of the Dockerfiles and images of apps with build.Service.
//
// An app has one template, named after its id, and each of its builds makes a version of it. The workspace of the app
// sees the template. All methods may be called concurrently.
package appimage

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/builder"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
)

// Builds is the part of build.Service that is used.
type Builds interface {
	NewUpload(ctx context.Context, p auth.Principal, files bool) (*build.Upload, error)
	Start(ctx context.Context, p auth.Principal, spec build.Spec, input *build.Upload) (api.Build, error)
	Get(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error)
	Cancel(ctx context.Context, p auth.Principal, id api.BuildID) (api.Build, error)
	Logs(ctx context.Context, p auth.Principal, id api.BuildID, after int64, follow bool,
		yield func(api.BuildLine) error) error
}

// Templates is the part of template.Service that is used.
type Templates interface {
	Resolve(ctx context.Context, p auth.Principal, name string) (api.Template, error)
	Delete(ctx context.Context, p auth.Principal, name string) error
}

// Images makes templates for apps. It implements builder.Images.
type Images struct {
	Builds    Builds
	Templates Templates
	// Workspace returns the workspace of an app that is being deleted.
	Workspace func(ctx context.Context, id api.AppID) (api.Workspace, error)
}

var _ builder.Images = Images{}

// cancelTimeout bounds the cancellation of a build that is no longer wanted.
const cancelTimeout = 10 * time.Second

// name returns the name of the template of an app.
func name(id api.AppID) string { return "app-" + string(id) }

// Build implements builder.Images.
func (i Images) Build(
	ctx context.Context,
	p auth.Principal,
	b builder.ImageBuild,
	log func(level, step, line string),
) (t api.Template, err error) {
	spec := build.Spec{BuildRequest: api.BuildRequest{
		Name: name(b.App), Replace: true, Dockerfile: b.Dockerfile, ImageRef: b.Image, NoCache: b.NoCache,
		MemoryMB: b.MemoryMB, Description: "made for an app",
	}}
	user := auth.Principal{Workspace: p.Workspace} // templates have no owner but their workspace
	var input *build.Upload
	if b.Context != nil {
		if input, err = i.Builds.NewUpload(ctx, user, false); err != nil {
			return t, err
		}
		defer input.Close() //nolint:errcheck // the next start removes what cannot be removed now
		if _, err := io.Copy(input, b.Context); err != nil {
			return t, err
		}
	}
	started, err := i.Builds.Start(ctx, user, spec, input)
	if err != nil {
		return t, err
	}
	err = i.Builds.Logs(ctx, user, started.ID, 0, true, func(l api.BuildLine) error {
		log(l.Level, l.Step, l.Line)
		return nil
	})
	if err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		_, e := i.Builds.Cancel(end, user, started.ID)
		return t, errors.Join(err, e)
	}
	ended, err := i.Builds.Get(ctx, user, started.ID)
	if err != nil {
		return t, err
	}
	if ended.Status != api.BuildDone {
		code := ended.Code
		if code == "" {
			code = api.Invalid
		}
		return t, &api.Error{Code: code, Message: ended.Error}
	}
	return i.Templates.Resolve(ctx, user, name(b.App))
}

// Forget implements builder.Images.
func (i Images) Forget(ctx context.Context, id api.AppID) error {
	workspace, err := i.Workspace(ctx, id)
	if err != nil {
		return err
	}
	err = i.Templates.Delete(ctx, auth.Principal{Workspace: workspace}, name(id))
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	return err
}
