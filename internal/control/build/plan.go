package build

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// defaultPath is the PATH of programs in a guest whose template does not set one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// stage is a base and the steps on it, with the names of their layers.
type stage struct {
	from   base
	steps  []dockerfile.Step
	files  []*dockerfile.Selection // files[i] is what step i copies from a context; nil: nothing
	config dockerfile.Config
	force  int      // the first step that must run even if a layer exists; len(steps): none
	keys   []string // layer names: keys[0] of the base, keys[i+1] of step i
	made   *origin  // set when the stage is built
}

// base is what a stage starts from. One of template, image, stage and scratch is set.
type base struct {
	template *api.Template
	image    *Image
	stage    int // index of an earlier stage; -1: none
	scratch  bool
	command  []string // command of an image
	entry    []string // entry point of an image, which a Dockerfile with a CMD of its own keeps
}

// origin is the result of a finished stage. One of the fields is set.
type origin struct {
	template *api.Template
	image    *Image
	scratch  bool
	snapshot string // snapshot of a layer
}

// plan turns the request into stages; the last stage is the result.
func (a *buildRun) plan(ctx context.Context) error {
	var err error
	switch {
	case a.spec.Dockerfile != "":
		err = a.planDockerfile(ctx)
	default:
		err = a.planSteps(ctx)
	}
	if err != nil {
		return err
	}
	a.row.Steps = 0
	for i := range a.stages {
		if err := a.computeKeys(ctx, i); err != nil {
			return err
		}
		a.row.Steps += len(a.stages[i].steps)
	}
	return nil
}

// baseResolver resolves references, each once.
type baseResolver struct {
	a    *buildRun
	ctx  context.Context //nolint:containedctx // the callback of the parser has no context
	seen map[string]base
	auth *api.RegistryAuth // with a server; nil: none
}

// newResolver returns a resolver for references of the build. Credentials that name no server are for the registry of
// the images among them, which must be one.
func (a *buildRun) newResolver(ctx context.Context, refs []string) (baseResolver, error) {
	b := baseResolver{a: a, ctx: ctx, seen: map[string]base{}, auth: a.spec.Registry}
	if b.auth == nil || b.auth.Server != "" || a.s.registry == nil {
		return b, nil
	}
	bound := *b.auth
	for _, ref := range refs {
		_, err := a.s.templates.Resolve(ctx, a.principal, ref)
		if err == nil {
			continue
		}
		server, err := a.s.registry.Server(ref)
		switch {
		case err != nil: // reported where it is resolved
		case bound.Server == "":
			bound.Server = server
		case bound.Server != server:
			return b, api.Errorf(
				api.Invalid,
				"registry.server: the images come from %s and %s; name the one that the credentials are for",
				bound.Server,
				server,
			).With("field", "registry.server")
		}
	}
	if b.auth = &bound; bound.Server == "" {
		b.auth = nil
	}
	return b, nil
}

// resolve returns the template of this node that a reference names, or else the image.
func (b baseResolver) resolve(ref string) (base, error) {
	if known, ok := b.seen[ref]; ok {
		return known, nil
	}
	out := base{stage: -1}
	t, err := b.a.s.templates.Resolve(b.ctx, b.a.principal, ref)
	switch {
	case err == nil:
		out.template = &t
	case api.CodeOf(err) != api.NotFound && api.CodeOf(err) != api.Invalid:
		return out, err
	case b.a.s.registry == nil:
		return out, err
	default:
		image, err := b.a.s.registry.Find(b.ctx, ref, b.auth)
		if err != nil && !strings.ContainsAny(ref, "/:@") {
			err = api.Wrap(
				api.CodeOf(err),
				err,
				fmt.Sprintf("template %s not found; as an image reference: %s", ref, err),
			)
		}
		if err != nil {
			return out, err
		}
		b.a.log.append(levelInfo, "", fmt.Sprintf("%s is %s, %s", ref, image.Digest, size(image.Bytes)))
		out.image = &image
		out.entry, out.command = image.Base.Config.Entrypoint, image.Base.Config.Cmd
	}
	b.seen[ref] = out
	return out, nil
}

// config returns the configuration that a Dockerfile starts with. On a template the steps run as root until USER says
// otherwise: the user of the template is for the processes of its sandboxes.
func (b base) config() dockerfile.Base {
	if b.image != nil {
		out := b.image.Base
		out.Config.Entrypoint, out.Config.Cmd = nil, nil // a template starts only what its own Dockerfile names
		return out
	}
	env := map[string]string{"PATH": defaultPath}
	maps.Copy(env, b.template.Env)
	return dockerfile.Base{Config: dockerfile.Config{Env: env, Workdir: b.template.Workdir}}
}

// planDockerfile makes the stages of a Dockerfile and opens its context.
func (a *buildRun) planDockerfile(ctx context.Context) error {
	var refs []string
	_, _ = a.spec.parseDockerfile(func(ref string) (dockerfile.Base, error) { // its errors are those of the next parse
		refs = append(refs, ref)
		return dockerfile.Base{}, nil
	})
	found, err := a.newResolver(ctx, refs)
	if err != nil {
		return err
	}
	var failed error
	plan, err := a.spec.parseDockerfile(func(ref string) (dockerfile.Base, error) {
		b, err := found.resolve(ref)
		if err != nil {
			failed = err
			return dockerfile.Base{}, err
		}
		return b.config(), nil
	})
	if err != nil {
		return wrapParseError(err, failed)
	}
	for _, w := range plan.Warnings {
		a.log.append(levelWarn, "", w)
	}
	for _, st := range plan.Stages {
		next := stage{steps: st.Steps, config: st.Config, force: len(st.Steps)}
		switch st.From.Kind {
		case dockerfile.FromStage:
			next.from = base{stage: st.From.Stage}
		case dockerfile.FromScratch:
			next.from = base{scratch: true, stage: -1}
		default:
			if next.from, err = found.resolve(st.From.Ref); err != nil {
				return err
			}
		}
		a.stages = append(a.stages, next)
	}
	return a.openContext()
}

// wrapParseError returns the error of a Dockerfile with the code of its cause, which may be nil.
func wrapParseError(err, cause error) error {
	code := api.Invalid
	if cause != nil {
		code = api.CodeOf(cause)
	}
	if e, ok := errors.AsType[*dockerfile.Error](err); ok && e.Unsupported {
		code = api.Unsupported
	}
	return api.Wrap(code, err, err.Error())
}

// openContext opens the files that were uploaded with the Dockerfile.
func (a *buildRun) openContext() error {
	var err error
	if a.contexts == nil {
		a.contexts = &contextFiles{}
	}
	a.contexts.main, err = a.contexts.get(a.s.inputPath(a.row.ID), a.spec.Input == "")
	return err
}

// planSteps makes one stage of an image or a template and the steps of E2B's builder.
func (a *buildRun) planSteps(ctx context.Context) error {
	ref := a.spec.ImageRef
	if ref == "" {
		ref = a.spec.FromTemplate
	}
	found, err := a.newResolver(ctx, []string{ref})
	if err != nil {
		return err
	}
	from, err := found.resolve(ref)
	if err != nil {
		return err
	}
	if a.spec.ImageRef != "" && from.image == nil {
		return api.Errorf(
			api.Invalid,
			"image_ref: %s is a template of this server: use from_template or a Dockerfile",
			ref,
		).With("field", "image_ref")
	}
	config := from.config().Config
	if from.template != nil {
		config.User = from.template.User
	}
	st := stage{from: from, config: config}
	if err := a.addSteps(&st); err != nil {
		return err
	}
	a.stages = append(a.stages, st)
	return nil
}

// addSteps translates the steps of E2B's builder.
func (a *buildRun) addSteps(st *stage) error {
	env, user, dir := maps.Clone(st.config.Env), st.config.User, st.config.Workdir
	forced := -1
	for i, e := range a.spec.Steps {
		step := dockerfile.Step{
			Line:    i + 1,
			Text:    e.Type + " " + strings.Join(e.Args, " "),
			User:    user,
			Workdir: orRoot(dir),
			Env:     env,
			Shell:   []string{"/bin/sh", "-c"},
		}
		switch e.Type {
		case "RUN":
			step.Kind, step.Run = dockerfile.KindRun, &dockerfile.Run{Argv: []string{"/bin/bash", "-c", e.Args[0]}}
			if len(e.Args) > 1 && e.Args[1] != "" {
				step.User = e.Args[1]
			}
		case "COPY":
			step.Kind, step.Copy = dockerfile.KindCopy, copyOf(e.Args, user, orRoot(dir))
		case "ENV":
			env = maps.Clone(env)
			if env == nil {
				env = map[string]string{}
			}
			for n := 0; n < len(e.Args); n += 2 {
				env[e.Args[n]] = e.Args[n+1]
			}
			continue
		case "USER":
			user = e.Args[0]
			continue
		case "WORKDIR":
			dir = resolve(dir, e.Args[0])
			step.Kind, step.Dir = dockerfile.KindDir, dir
		}
		if e.Force && forced < 0 {
			forced = len(st.steps)
		}
		sel, err := a.selectFiles(e, step)
		if err != nil {
			return err
		}
		st.steps, st.files = append(st.steps, step), append(st.files, sel)
	}
	if st.force = len(st.steps); forced >= 0 {
		st.force = forced
	}
	st.config.Env, st.config.User, st.config.Workdir = env, user, dir
	return nil
}

func orRoot(dir string) string {
	if dir == "" {
		return "/"
	}
	return dir
}

func resolve(dir, to string) string {
	if path.IsAbs(to) {
		return path.Clean(to)
	}
	return path.Join(orRoot(dir), to)
}

// copyOf parses source, destination, user and mode of a COPY of E2B's builder.
func copyOf(args []string, user, dir string) *dockerfile.Copy {
	dest := resolve(dir, args[1])
	if strings.HasSuffix(args[1], "/") && dest != "/" {
		dest += "/"
	}
	cp := &dockerfile.Copy{
		From: -1, Sources: []string{strings.TrimPrefix(args[0], "/")}, Dest: dest, Chown: user, KeepLinks: true,
	}
	if len(args) > 2 && args[2] != "" {
		cp.Chown = args[2]
	}
	if len(args) > 3 {
		cp.Chmod = args[3]
	}
	return cp
}

// selectFiles finds the files of its upload that a COPY of E2B's builder names.
func (a *buildRun) selectFiles(e Step, step dockerfile.Step) (*dockerfile.Selection, error) {
	if step.Copy == nil {
		return nil, nil
	}
	path, err := a.s.filePath(a.principal.Workspace, e.Files)
	if err != nil {
		return nil, err
	}
	if a.contexts == nil {
		a.contexts = &contextFiles{}
	}
	files, err := a.contexts.get(path, false)
	if err != nil {
		return nil, err
	}
	return selectContext(files, step)
}

// selectContext finds the files of a context that a step copies.
func selectContext(files *dockerfile.Context, step dockerfile.Step) (*dockerfile.Selection, error) {
	sel, err := files.Select(*step.Copy)
	if errors.Is(err, dockerfile.ErrContext) {
		return nil, api.Wrap(api.Invalid, err, fmt.Sprintf("%s: %s (line %d)", step.Text, err, step.Line))
	}
	return sel, err
}

// computeKeys sets the layer names of a stage.
func (a *buildRun) computeKeys(ctx context.Context, n int) error {
	st := &a.stages[n]
	first, err := a.baseKey(ctx, st.from)
	if err != nil {
		return err
	}
	st.keys = append(st.keys[:0], first)
	chosen := len(st.files) > 0 // addSteps has selected the files
	for i, step := range st.steps {
		if !chosen {
			var sel *dockerfile.Selection
			if step.Copy != nil && step.Copy.From < 0 {
				if sel, err = selectContext(a.contexts.main, step); err != nil {
					return err
				}
			}
			st.files = append(st.files, sel)
		}
		inputs := ""
		if sel := st.files[i]; sel != nil {
			inputs = sel.Digest
		} else if step.Copy != nil {
			from := a.stages[step.Copy.From].keys
			inputs = from[len(from)-1]
		}
		st.keys = append(st.keys, step.Key(st.keys[i], inputs))
	}
	return nil
}

// baseKey returns the layer name of a base. It depends on the monitor of this host, because a layer holds memory that
// no other monitor can read.
func (a *buildRun) baseKey(ctx context.Context, from base) (string, error) {
	c, err := a.s.host.Capacity(ctx)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "base 1\n%s\n%s\n%s\n%s\n", c.Driver, c.Version, c.Accelerator, c.Format)
	switch {
	case from.stage >= 0:
		keys := a.stages[from.stage].keys
		return keys[len(keys)-1], nil
	case from.template != nil:
		fmt.Fprintf(h, "template\n%s\n", from.template.Host)
		if from.template.BakedAt != nil {
			fmt.Fprintln(h, from.template.BakedAt.UnixNano())
		}
	case from.image != nil:
		fmt.Fprintf(h, "image\n%s\n%d\n%d\n", from.image.Digest, a.s.cfg.VCPUs, a.s.cfg.MemoryMiB)
	default:
		fmt.Fprintf(h, "scratch\n%d\n%d\n", a.s.cfg.VCPUs, a.s.cfg.MemoryMiB)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
