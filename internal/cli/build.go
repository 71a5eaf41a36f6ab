package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/cli/values"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// buildFlags are the flags of template build.
type buildFlags struct {
	req    api.BuildRequest
	file   string
	rootfs string
	args   []string
	auth   api.RegistryAuth
	noWait bool
	limits values.LimitFlags
}

func (a *app) templateBuild() *cobra.Command {
	var f buildFlags
	c := &cobra.Command{Use: "build [DIRECTORY]", Short: "Build a template", Args: cobra.MaximumNArgs(1),
		Long: "Build a template from the Dockerfile and the files of a directory, or from the source that a flag\n" +
			"names, and show the log. Files matched by .dockerignore are not sent. An existing template gets a\n" +
			"new version.",
		Example: "  pandastack template build .\n  pandastack template build --name web --cpu 2 --memory 1024 ./web\n" +
			"  pandastack template build --name tools --image registry.example.com/tools:3\n" +
			"  pandastack template build --name mine --from-sandbox sbx... --keep-memory\n" +
			"  pandastack template build --name large --from-template mine --memory 4096"}
	fl := c.Flags()
	fl.StringVarP(&f.req.Name, "name", "n", "", "name of the template (default: that of the directory)")
	fl.StringVarP(&f.file, "file", "f", "", "Dockerfile (default: the one in the directory)")
	fl.StringArrayVar(&f.args, "build-arg", nil, "NAME=VALUE of an ARG; may be repeated")
	fl.StringVar(&f.req.Target, "target", "", "stage to build (default: the last)")
	fl.StringVar(&f.req.ImageRef, "image", "", "build from an image of a registry")
	fl.StringVar(&f.rootfs, "rootfs", "", "build from a tar file of a root file system")
	fl.StringVar((*string)(&f.req.FromSandbox), "from-sandbox", "", "build from the current state of a sandbox")
	fl.StringVar((*string)(&f.req.FromSnapshot), "from-snapshot", "", "build from a snapshot")
	fl.StringVar(&f.req.FromTemplate, "from-template", "", "build a template of another size from a built one")
	fl.BoolVar(&f.req.Memory, "keep-memory", false, "with a sandbox or snapshot: keep its memory and running programs")
	fl.IntVar(&f.req.CPU, "cpu", 0, "processors (default: those of the source, or 1)")
	fl.IntVar(&f.req.MemoryMB, "memory", 0, "memory in MiB (default: that of the source, or 512)")
	fl.IntVar(&f.req.SizeMB, "disk", 0, "disk in MiB (default: that of the source, or 4096)")
	fl.StringVar(&f.req.Start, "start", "", "command that runs in every sandbox (default: CMD and ENTRYPOINT)")
	fl.StringVar(&f.req.Ready, "ready", "", "command that succeeds once the start command is ready (default: "+
		"HEALTHCHECK)")
	fl.StringArrayVar(&f.req.Warm, "warm", nil, "command that runs once before the capture; may be repeated")
	fl.StringSliceVar(&f.req.Tags, "tag", nil, "tag of the new version (default: default)")
	fl.StringVar(&f.req.Description, "description", "", "description of the template")
	fl.BoolVar(&f.req.Global, "global", false, "let all workspaces use the template")
	fl.BoolVar(&f.req.NoCache, "no-cache", false, "run every step, without cached layers")
	fl.StringVar(
		&f.auth.Username,
		"registry-user",
		"",
		"user at the registry; the password is read from --registry-password-file",
	)
	fl.StringVar(&f.auth.Password, "registry-password-file", "", "file with the password or token for the registry")
	f.limits.Register(fl)
	fl.BoolVar(&f.noWait, "no-wait", false, "start the build and do not wait for it")
	c.RunE = func(c *cobra.Command, args []string) error {
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		return a.startBuild(c.Context(), f, dir)
	}
	return c
}

// startBuild sends a build request and follows the build.
func (a *app) startBuild(ctx context.Context, f buildFlags, dir string) error {
	cl, err := a.Dial()
	if err != nil {
		return err
	}
	if f.req.Args, err = buildArgs(f.args); err != nil {
		return err
	}
	if f.auth.Password != "" {
		secret, err := os.ReadFile(f.auth.Password)
		if err != nil {
			return api.Errorf(api.Invalid, "registry password: %v", err)
		}
		f.auth.Password = strings.TrimSpace(string(secret))
		if f.auth.Username == "" {
			f.auth.Token, f.auth.Password = f.auth.Password, ""
		}
		f.req.Registry = &f.auth
	}
	f.req.Replace, f.req.Limits = true, f.limits.Given()
	up, done, err := f.upload(dir)
	if err != nil {
		return err
	}
	b, err := cl.Templates.Build(ctx, f.req, up)
	if err = errors.Join(err, done()); err != nil {
		return err
	}
	if b.Reused && b.Status.Ended() {
		a.Statusf("template %s is up to date: it was made by build %s", b.Name, b.ID)
	} else if !f.noWait {
		if b, err = a.followBuild(ctx, cl, b.ID, 0); err != nil {
			return err
		}
	}
	return a.PrintLine(b, string(b.ID))
}

func buildArgs(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range list {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, api.Errorf(api.Invalid, "--build-arg %q is not NAME=VALUE", text)
		}
		out[name] = value
	}
	return out, nil
}

// upload opens the files that are sent with the request, and reads the Dockerfile of a directory into the request. The
// caller calls done after the request.
func (f *buildFlags) upload(dir string) (up *client.Upload, done func() error, err error) {
	none := func() error { return nil }
	switch {
	case f.rootfs != "":
		file, err := os.Open(f.rootfs)
		if err != nil {
			return nil, none, api.Errorf(api.Invalid, "root file system: %v", err)
		}
		return &client.Upload{Tar: file, Rootfs: true}, file.Close, nil
	case f.req.ImageRef != "" || f.req.FromSandbox != "" || f.req.FromSnapshot != "" || f.req.FromTemplate != "":
		return nil, none, nil
	}
	return f.directory(dir)
}

// directory reads the Dockerfile of a directory and opens the directory as the build context.
func (f *buildFlags) directory(dir string) (*client.Upload, func() error, error) {
	none := func() error { return nil }
	if f.req.Name == "" {
		full, err := filepath.Abs(dir)
		if err != nil {
			return nil, none, err
		}
		f.req.Name = strings.ToLower(filepath.Base(full))
	}
	file := f.file
	if file == "" {
		file = filepath.Join(dir, "Dockerfile")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, none, api.Errorf(
			api.Invalid,
			"%v: name the directory of a Dockerfile, or the file with --file",
			err,
		)
	}
	f.req.Dockerfile = string(text)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, none, api.Errorf(api.Invalid, "%v", err)
	}
	files, err := dockerfile.OpenDir(root.FS(), dockerfile.Limits{})
	if err != nil {
		return nil, none, errors.Join(api.Wrap(api.Invalid, err, err.Error()), root.Close())
	}
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		w.CloseWithError(files.Pack(w))
	}()
	return &client.Upload{Tar: r}, func() error {
		r.CloseWithError(io.ErrClosedPipe)
		<-packed
		return root.Close()
	}, nil
}

// followBuild shows the log of a build on standard error until the build has ended, and returns the build. It returns
// an error with the code of the build if the build failed.
func (a *app) followBuild(ctx context.Context, cl *client.Client, id api.BuildID, after int64) (api.Build, error) {
	show := buildLines(a.Statusf)
	for again := 0; ; again++ {
		err := cl.Templates.BuildLogs(ctx, id, after, true, func(l api.BuildLine) error {
			after, again = l.Seq, 0
			if l.Level != "error" { // it is part of the returned error
				show(l)
			}
			return nil
		})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			a.Statusf(
				"the node continues the build: pandastack template logs -f %s follows it, "+
					"pandastack template cancel %s cancels it",
				id,
				id,
			)
			return api.Build{}, err
		}
		if code := api.CodeOf(err); code != api.Unavailable && code != api.Unreachable || again == 5 {
			return api.Build{}, err
		}
	}
	b, err := cl.Templates.GetBuild(ctx, id)
	if err == nil && b.Status == api.BuildFailed {
		err = api.Errorf(b.Code, "build %s failed: %s", b.ID, b.Error)
	}
	return b, err
}

// maxTitle is the maximum length of a step's title, in characters.
const maxTitle = 100

// buildLines returns a function that prints log lines below the title of their step, which it prints once.
func buildLines(printf func(format string, args ...any)) func(api.BuildLine) {
	step := ""
	return func(l api.BuildLine) {
		title := strings.Join(strings.Fields(l.Step), " ")
		if runes := []rune(title); len(runes) > maxTitle {
			title = string(runes[:maxTitle]) + "..."
		}
		switch {
		case l.Step == "":
			printf("%s", l.Line)
		case l.Line == "cached":
			printf("[%s] cached", title)
		case l.Step != step:
			printf("[%s]", title)
			if l.Line != "begins" {
				printf("  %s", l.Line)
			}
		default:
			printf("  %s", l.Line)
		}
		step = l.Step
	}
}

func (a *app) templateBuilds() *cobra.Command {
	return &cobra.Command{
		Use:   "builds [NAME]",
		Short: "List builds",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			list, err := cl.Templates.Builds(c.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			head := []string{"ID", "TEMPLATE", "STATUS", "STEPS", "CACHED", "STEP"}
			return cmdutil.PrintTable(a.Factory, list, head, func(b api.Build) []string {
				return []string{
					string(b.ID), b.Name, string(b.Status), fmt.Sprintf("%d/%d", b.StepsDone, b.Steps),
					fmt.Sprint(b.StepsCached), b.Step,
				}
			}, "CACHED")
		},
	}
}

func (a *app) templateLogs() *cobra.Command {
	follow := false
	c := &cobra.Command{Use: "logs BUILD", Short: "Show the log of a build", Args: cobra.ExactArgs(1)}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the build has ended")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		var failed []error
		show := buildLines(func(format string, args ...any) {
			_, err := fmt.Fprintf(a.Stdout, format+"\n", args...)
			failed = append(failed, err)
		})
		return cl.Templates.BuildLogs(c.Context(), api.BuildID(args[0]), 0, follow, func(l api.BuildLine) error {
			return a.Print(l, func(io.Writer) error {
				failed = nil
				show(l)
				return errors.Join(failed...)
			})
		})
	}
	return c
}

func (a *app) templateCancel() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel BUILD",
		Short: "Cancel a build",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			b, err := cl.Templates.CancelBuild(c.Context(), api.BuildID(args[0]))
			if err != nil {
				return err
			}
			return a.PrintLine(b, string(b.ID))
		},
	}
}

func (a *app) templateRetry() *cobra.Command {
	return &cobra.Command{
		Use:   "retry BUILD",
		Short: "Run a failed build again",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			b, err := cl.Templates.RetryBuild(c.Context(), api.BuildID(args[0]), api.RetryRequest{})
			if err == nil {
				b, err = a.followBuild(c.Context(), cl, b.ID, 0)
			}
			if err != nil {
				return err
			}
			return a.PrintLine(b, string(b.ID))
		},
	}
}

func (a *app) templateDelete() *cobra.Command {
	return &cobra.Command{
		Use:     "delete NAME...",
		Aliases: []string{"rm"},
		Short:   "Delete built templates; their sandboxes keep running",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cl, err := a.Dial()
			if err != nil {
				return err
			}
			return a.deleteAll(c.Context(), args, cl.Templates.Delete)
		},
	}
}

func (a *app) templateTag() *cobra.Command {
	var req api.TagRequest
	remove := false
	c := &cobra.Command{
		Use:   "tag NAME TAG...",
		Short: "Assign tags to a version of a template",
		Args:  cobra.MinimumNArgs(2),
	}
	c.Flags().StringVar(&req.Target, "target", "", "tag or version to assign them to (default: default)")
	c.Flags().BoolVar(&remove, "remove", false, "remove the tags instead")
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := a.Dial()
		if err != nil {
			return err
		}
		if remove {
			for _, tag := range args[1:] {
				err = errors.Join(err, cl.Templates.Untag(c.Context(), args[0], tag))
			}
			return err
		}
		req.Tags = args[1:]
		t, err := cl.Templates.Tag(c.Context(), args[0], req)
		if err != nil {
			return err
		}
		return a.PrintLine(t, string(t.Version))
	}
	return c
}
