package node

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/appimage"
	"github.com/pandastack/pandastack/internal/control/app/builder"
	"github.com/pandastack/pandastack/internal/control/app/domain"
	"github.com/pandastack/pandastack/internal/control/app/repo"
	"github.com/pandastack/pandastack/internal/control/app/staticfiles"
	"github.com/pandastack/pandastack/internal/control/app/upload"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/build"
	"github.com/pandastack/pandastack/internal/control/database"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
	"github.com/pandastack/pandastack/internal/control/volume"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/appapi"
	"github.com/pandastack/pandastack/internal/lib/blob"
	"github.com/pandastack/pandastack/internal/os/clientconfig"
)

// apps is the service for apps with what it is made of.
type apps struct {
	suffix  string
	service *app.Service
	uploads *upload.Service
	repos   *repo.Service
	files   *staticfiles.Files
	domains *domain.Service
	edge    *appEdge // set by handler
	sources appSources
}

// appDeps are the parts of the control plane that apps need.
type appDeps struct {
	store     *store.DB
	sandboxes *sandbox.Service
	volumes   *volume.Service
	databases *database.Service // nil: none
	templates *template.Service
	builds    *build.Service
	quotas    *quota.Quotas
	log       *slog.Logger
}

// buildProgram builds apps in machines. It is in the directory of the guest agent.
const buildProgram = "pandastack-build"

// appSuffix returns the domain of the apps' host names.
func (n *node) appSuffix() string {
	if s := n.Config.Apps.Suffix; s != "" {
		return s
	}
	return n.below("app")
}

// below returns a domain below the host of the public URL, or localhost if that has no name.
func (n *node) below(label string) string {
	if u, err := url.Parse(n.Config.PublicURL); err == nil && u.Hostname() != "" {
		if _, err := netip.ParseAddr(u.Hostname()); err != nil { // no name is below an address
			return label + "." + u.Hostname()
		}
	}
	return label + ".localhost"
}

// apps creates the service for apps.
func (n *node) apps(ctx context.Context, deps appDeps) (a apps, err error) {
	set := n.Config.Apps
	a.suffix = n.appSuffix()
	if a.files, err = n.staticFiles(ctx); err != nil {
		return a, err
	}
	a.uploads, err = upload.New(upload.Config{Dir: n.path("apps", "uploads"), MaxBytes: int64(set.UploadMiB) << 20},
		deps.store, deps.quotas, deps.log)
	if err != nil {
		return a, err
	}
	a.repos, err = repo.New(repo.Config{Template: set.Template, VolumeMiB: set.RepositoryMiB, PushMiB: set.PushMiB},
		deps.sandboxes, deps.volumes, deps.log)
	if err != nil {
		return a, err
	}
	program := filepath.Join(filepath.Dir(n.Config.Agent()), buildProgram)
	mirrors, err := appMirrors(ctx, set.Mirrors, clientconfig.Here())
	if err != nil {
		return a, err
	}
	images := appimage.Images{Builds: deps.builds, Templates: deps.templates,
		Workspace: func(ctx context.Context, id api.AppID) (api.Workspace, error) {
			row, err := deps.store.Read().App(ctx, string(id))
			return api.Workspace(row.Workspace), err
		}}
	builds, err := builder.New(
		builder.Config{Template: set.Template, Program: program, Timeout: set.BuildTimeout, Mirrors: mirrors},
		builder.Deps{
			Sandboxes: deps.sandboxes, Finder: appFinder{deps.sandboxes}, Templates: deps.templates,
			Uploads: appUploads{a.uploads}, Files: a.files, Images: images,
			Repositories: appRepositories{}, Log: deps.log,
		},
	)
	if err != nil {
		return a, err
	}
	u, err := url.Parse(n.apiURL)
	if err != nil {
		return a, fmt.Errorf("address of the API: %w", err)
	}
	needs := app.Deps{
		Store: deps.store, Sandboxes: deps.sandboxes, Volumes: deps.volumes, Templates: deps.templates, Builder: builds,
		Quotas: deps.quotas, Log: deps.log,
		HasUpload: func(_ context.Context, id api.AppID, upload string) error { return a.uploads.Has(id, upload) },
		DropFiles: func(ctx context.Context, id api.DeploymentID) error { return a.files.Delete(ctx, string(id)) },
		Forget:    []func(context.Context, api.AppID) error{a.uploads.Forget, a.repos.Forget},
	}
	if deps.databases != nil {
		needs.Databases = deps.databases
	}
	a.service, err = app.New(app.Config{
		Suffix: a.suffix, Scheme: cmp.Or(u.Scheme, "http"), Port: u.Port(), URL: n.apiURL, Idle: set.Idle,
		Keep: set.Keep, Concurrency: set.Deployments, Template: set.Template, DatabaseAddress: n.guestDatabases(),
		Own: n.ownHosts(), Rehearse: n.translates,
	}, needs)
	if err != nil {
		return a, err
	}
	if a.sources, err = n.appSources(deps.store, a.service, a.repos); err != nil {
		return a, err
	}
	return a, n.customDomains(ctx, &a, deps.store)
}

// guestDatabases returns where guests reach databases; "": at the addresses of other clients.
func (n *node) guestDatabases() string {
	if n.guests == nil {
		return ""
	}
	return n.guests.Addr().String()
}

// api returns what the API offers of apps.
func (a apps) api() appapi.API {
	return appapi.API{Apps: a.service, Domains: a.domains, Uploads: a.uploads, Edge: a.edge, Hooks: a.sources.hooks}
}

// run runs what apps need.
func (a apps) run(ctx context.Context, n *node) {
	n.run(ctx, "uploads of apps", a.uploads.Run)
	n.run(ctx, "repositories of apps", a.repos.Run)
	n.run(ctx, "apps", a.service.Run)
	n.run(ctx, "domains of apps", a.domains.Run)
	n.run(ctx, "requests to apps", a.edge.Run)
	if n.acme != nil {
		n.run(ctx, "certificates of domains", n.acme.Run)
	}
	a.sources.run(ctx, n)
}

// staticFiles opens where the files of apps are kept that are served without a machine.
func (n *node) staticFiles(ctx context.Context) (*staticfiles.Files, error) {
	temporary := n.path("apps", "spool")
	if err := os.RemoveAll(temporary); err != nil {
		return nil, fmt.Errorf("apps: %w", err)
	}
	if err := os.MkdirAll(temporary, 0o700); err != nil {
		return nil, fmt.Errorf("apps: %w", err)
	}
	files, err := blob.Open(ctx, "file://"+n.path("apps", "files"), blob.Options{})
	if err != nil {
		return nil, fmt.Errorf("apps: %w", err)
	}
	n.undo.Push("close files of apps", func(context.Context) error { return files.Close() })
	return staticfiles.New(files, temporary, staticfiles.Limits{}), nil
}

// appFinder lists what an app has.
type appFinder struct{ boxes *sandbox.Service }

func (f appFinder) Machines(ctx context.Context, p auth.Principal) ([]api.Sandbox, error) {
	page, err := f.boxes.List(ctx, p, api.SandboxFilter{})
	return page.Sandboxes, err
}

func (f appFinder) Snapshots(ctx context.Context, p auth.Principal) ([]api.Snapshot, error) {
	page, err := f.boxes.Snapshots(ctx, p, api.SnapshotFilter{})
	return page.Snapshots, err
}

// appUploads has the archives that deployments are made of.
type appUploads struct{ uploads *upload.Service }

func (u appUploads) Open(ctx context.Context, id api.AppID, name string) (io.ReadCloser, error) {
	_, r, err := u.uploads.Open(ctx, id, name)
	return r, err
}

// appRepositories says where machines of builds find the repositories that are pushed to.
type appRepositories struct{}

func (appRepositories) Source(_ context.Context, id api.AppID) (api.VolumeMount, string, error) {
	const at = "/mnt/repository"
	return api.VolumeMount{Name: repo.VolumeName(id), MountPath: at, ReadOnly: true}, at + "/" + repo.Dir, nil
}
