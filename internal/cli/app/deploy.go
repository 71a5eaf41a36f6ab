package app

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/app/sourcetree"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// directoryFlags are the flags of deploy.
type directoryFlags struct {
	settings
	app    string
	env    map[string]string
	files  sourcetree.Options
	fresh  bool
	detach bool
}

// Deploy returns the command that deploys a directory.
func Deploy(f *cmdutil.Factory) *cobra.Command {
	var d directoryFlags
	c := &cobra.Command{
		Use:   "deploy [DIRECTORY]",
		Short: "Deploy a directory as an app, and print its URL",
		Long: "Deploy a directory as an app, show the build, and print the URL. The first time an app is created;\n" +
			"its name is that of --app, of \"name\" in pandastack.json, or of the directory, and is remembered in\n" +
			".pandastack/app.json. Settings that are given as flags are changed in an app that exists.\n\n" +
			"Files that .gitignore, .dockerignore or .pandastackignore name are not sent, nor are .git and .env\n" +
			"files.",
		Example: "  pandastack deploy\n  pandastack deploy ./web --app shop --env LOG_LEVEL=debug\n" +
			"  pandastack deploy --build 'npm run build' --start 'node server.js' --port 8080",
		Args: cobra.MaximumNArgs(1),
	}
	fl := c.Flags()
	fl.StringVarP(&d.app, "app", "a", "", "name or id of the app")
	fl.StringToStringVarP(&d.env, "env", "e", nil, "variable to set first, NAME=value; may be repeated")
	fl.BoolVar(&d.files.Env, "include-env", false, "send .env files too; they are in every machine of the app")
	fl.BoolVar(&d.files.Git, "include-git", false, "send .git too, for builds that read the history")
	fl.BoolVar(&d.fresh, "no-cache", false, "run every step of the build")
	fl.BoolVar(&d.detach, "detach", false, "print the id of the deployment at once, and do not wait")
	d.register(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		root, err := openDirectory(dir)
		if err != nil {
			return err
		}
		return errors.Join(d.deploy(f, c, cl, root, dir), root.Close())
	}
	return c
}

func (d *directoryFlags) deploy(
	f *cmdutil.Factory,
	c *cobra.Command,
	cl *client.Client,
	root *os.Root,
	dir string,
) error {
	ctx := c.Context()
	change, err := d.request(c)
	if err != nil {
		return err
	}
	tree, err := sourcetree.Open(root.FS(), d.files)
	if err != nil {
		return api.Errorf(api.Invalid, "%v", err)
	}
	if tree.Files() == 0 {
		return api.Errorf(api.Invalid, "%s has no files to deploy, or all are ignored", dir)
	}
	at, err := chooseTarget(root, dir, d.app, cl.URL())
	if err != nil {
		return err
	}
	app, err := d.ensure(ctx, f, cl.Apps, at, change)
	if err != nil {
		return err
	}
	if err := remember(root, link{API: cl.URL(), App: app.ID, Name: app.Name}); err != nil {
		f.Statusf("the next deployment needs --app %s: %v", app.Name, err)
	}
	if len(tree.Left) > 0 {
		f.Statusf("not sent: %s; 'pandastack app env import %s FILE' sets the variables of a file",
			brief(strings.Join(tree.Left, " "), 60), app.Name)
	}
	f.Statusf("app %s: sending %d files, %s", app.Name, tree.Files(), cmdutil.Size(tree.Bytes))
	up, err := send(ctx, cl.Apps, string(app.ID), tree)
	if err != nil {
		return err
	}
	started, err := cl.Apps.Deploy(ctx, string(app.ID), api.DeployRequest{Upload: up.ID, NoCache: d.fresh})
	if err != nil {
		return err
	}
	return finish(ctx, f, cl.Apps, app.Name, started, d.detach)
}

// ensure returns the app to deploy to with the settings that were given, and creates it if there is none.
func (d *directoryFlags) ensure(
	ctx context.Context,
	f *cmdutil.Factory,
	a *client.Apps,
	at target,
	change api.UpdateAppRequest,
) (api.App, error) {
	app, err := a.Get(ctx, at.name)
	switch {
	case err == nil && at.isNew:
		return app, api.Errorf(api.Conflict, "app %s exists: 'pandastack deploy --app %[1]s' deploys to it, and "+
			"another name makes a new one", at.name)
	case api.CodeOf(err) == api.NotFound && api.AppID(at.name).Valid():
		return app, api.Errorf(api.NotFound, "app %s, which %s names, does not exist: name another with --app",
			at.name, at.from)
	case api.CodeOf(err) == api.NotFound:
		req := creation(at.name, change, d.env)
		if err := req.Validate(); err != nil {
			return app, err
		}
		if app, err = a.Create(ctx, req); err == nil {
			f.Statusf("created app %s", app.Name)
		}
		return app, err
	case err != nil:
		return app, err
	}
	if change != (api.UpdateAppRequest{}) {
		if app, err = a.Update(ctx, string(app.ID), change); err != nil {
			return app, err
		}
	}
	for name, value := range d.env {
		if err := a.SetVariable(ctx, string(app.ID), name, api.SetVariableRequest{Value: value}); err != nil {
			return app, err
		}
	}
	return app, nil
}

// send packs a tree and uploads it on the way.
func send(ctx context.Context, a *client.Apps, app string, tree *sourcetree.Tree) (api.AppUpload, error) {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tree.Pack(w)
		w.CloseWithError(err)
		packed <- err
	}()
	up, err := a.Upload(ctx, app, r)
	r.CloseWithError(io.ErrClosedPipe)
	if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		err = failed // it is why the upload failed
	}
	return up, err
}
