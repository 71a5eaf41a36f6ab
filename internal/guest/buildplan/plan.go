package buildplan

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/railwayapp/railpack/core"
	"github.com/railwayapp/railpack/core/app"
	"github.com/railwayapp/railpack/core/logger"
	"github.com/railwayapp/railpack/core/mise"
	"github.com/railwayapp/railpack/core/plan"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// plannerDir is where railpack looks for the program that knows the versions of tools.
const plannerDir = mise.InstallDir

// buildPlan is what is executed, as it is kept beside the source.
type buildPlan struct {
	Source    string             `json:"source"` // the directory that is built, relative to that of the source
	Steps     []buildStep        `json:"steps"`
	Exclude   []string           `json:"exclude,omitempty"`
	Variables map[string]string  `json:"variables,omitempty"` // of the running app
	Paths     []string           `json:"paths,omitempty"`     // of the running app
	Start     string             `json:"start,omitempty"`
	Workdir   string             `json:"workdir,omitempty"` // of the running app, below the directory of the app
	Static    *buildevent.Static `json:"static,omitempty"`  // Dir is relative to the directory of the app
	Framework string             `json:"framework,omitempty"`
	Runtime   string             `json:"runtime,omitempty"`
	Version   string             `json:"version,omitempty"`
	Port      int                `json:"port,omitempty"`
}

// buildStep is a step of the plan with what it depends on.
type buildStep struct {
	buildevent.Step
	Tools   map[string]string `json:"tools,omitempty"` // to install: versions by name
	Apt     []string          `json:"apt,omitempty"`   // packages of the distribution to install
	Local   bool              `json:"local,omitempty"` // it begins with a copy of the whole source
	Include []string          `json:"include,omitempty"`
	Execute plan.Step         `json:"execute"`
}

// configNotice is what railpack says of every configuration file, and so of the one with the user's settings.
const configNotice = "The config file format is not yet finalized and subject to change."

// plan finds out how the source is built, and writes the plan beside it.
func (r *run) plan(ctx context.Context) error {
	r.out.begin("plan")
	settings, err := r.settings()
	if err != nil {
		return err
	}
	dir := filepath.Join(r.source(), settings.RootDirectory)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return invalid("root_directory", "name a directory of the repository", "the repository has no directory %.100q",
			settings.RootDirectory)
	}
	docker, err := dockerfile(dir, settings)
	if err != nil {
		return err
	}
	if docker != "" {
		r.out.info("found a Dockerfile")
		p := &buildevent.Plan{Framework: "docker", Dockerfile: docker}
		if err := r.write(&buildPlan{Source: settings.RootDirectory}); err != nil {
			return err
		}
		r.out.event(buildevent.Event{Kind: buildevent.KindPlan, Plan: p})
		return nil
	}
	p, err := r.planWorkspace(ctx, settings)
	if err != nil {
		return err
	}
	if err := r.keys(p); err != nil {
		return err
	}
	if err := r.write(p); err != nil {
		return err
	}
	out := &buildevent.Plan{Framework: p.Framework}
	for i := range p.Steps {
		out.Steps = append(out.Steps, p.Steps[i].Step)
	}
	r.out.info("%s, %d steps", cmp.Or(p.Framework, "no framework"), len(p.Steps))
	r.out.event(buildevent.Event{Kind: buildevent.KindPlan, Plan: out})
	return nil
}

func (r *run) write(p *buildPlan) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writePrivate(r.planFile(), data)
}

func (r *run) readPlan() (*buildPlan, error) {
	data, err := os.ReadFile(r.planFile())
	if err != nil {
		return nil, err
	}
	p := new(buildPlan)
	return p, json.Unmarshal(data, p)
}

func writePrivate(name string, data []byte) error { return os.WriteFile(name, data, 0o600) }

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// dockerfile returns the text of the Dockerfile that decides how the app is built; "" if there is none, or if the
// settings ask for something else.
func dockerfile(dir string, s buildevent.Settings) (string, error) {
	framework := strings.ToLower(s.Framework)
	asked := framework == "docker" || framework == "dockerfile"
	if framework != "" && !asked && framework != "generic" && framework != "auto" {
		return "", nil
	}
	data, err := readFile(filepath.Join(dir, "Dockerfile"), buildevent.MaxFile)
	if err != nil {
		return "", err
	}
	if asked && data == nil {
		return "", invalid("framework", "add one, or leave framework empty", "the repository has no Dockerfile")
	}
	return string(data), nil
}

// planWorkspace plans a directory of a repository. A package of a workspace whose dependencies are locked at the top
// is installed there, and built and started in its own directory.
func (r *run) planWorkspace(ctx context.Context, s buildevent.Settings) (*buildPlan, error) {
	sub := path.Clean(s.RootDirectory)
	if s.RootDirectory == "" || sub == "." || !isWorkspace(r.source(), filepath.Join(r.source(), sub)) {
		return r.planDir(ctx, path.Clean("./"+s.RootDirectory), s)
	}
	r.out.info("%s is a package of a workspace", sub)
	own, err := r.planDir(ctx, sub, s)
	if err != nil {
		return nil, err
	}
	top := s
	top.BuildCommand, top.StartCommand, top.OutputDirectory = "true", "true", ""
	whole, err := r.planDir(ctx, ".", top)
	if err != nil {
		return nil, err
	}
	var build []plan.Command
	for i := range own.Steps {
		if own.Steps[i].Name != "build" {
			continue
		}
		for _, c := range own.Steps[i].Execute.Commands {
			if e, ok := c.(plan.ExecCommand); ok {
				e.Cmd = "cd " + quote(sub) + " && " + e.Cmd
				c = e
			}
			build = append(build, c)
		}
	}
	for i := range whole.Steps {
		if whole.Steps[i].Name == "build" {
			whole.Steps[i].Execute.Commands = build
			whole.Steps[i].Local = true
		}
	}
	whole.Start, whole.Static, whole.Port, whole.Workdir = own.Start, own.Static, own.Port, sub
	whole.Framework, whole.Runtime, whole.Version = own.Framework, own.Runtime, own.Version
	if whole.Static != nil {
		whole.Static.Dir = path.Join(sub, whole.Static.Dir)
	}
	return whole, nil
}

// isWorkspace reports whether the package in dir has no lock file of its own, and the top has one and is a workspace.
func isWorkspace(top, dir string) bool {
	locks := []string{"package-lock.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock", "bun.lockb"}
	has := func(at string) bool {
		return slices.ContainsFunc(locks, func(name string) bool { return exists(filepath.Join(at, name)) })
	}
	if !exists(filepath.Join(dir, "package.json")) || has(dir) || !has(top) {
		return false
	}
	var pkg struct {
		Workspaces json.RawMessage `json:"workspaces"`
	}
	data, err := readFile(filepath.Join(top, "package.json"), maxManifest)
	if err == nil && data != nil && json.Unmarshal(data, &pkg) == nil && len(pkg.Workspaces) > 0 {
		return true
	}
	return exists(filepath.Join(top, "pnpm-workspace.yaml"))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// planDir plans one directory of the source with railpack.
func (r *run) planDir(ctx context.Context, sub string, s buildevent.Settings) (*buildPlan, error) {
	dir := filepath.Join(r.source(), sub)
	if err := r.offerMise(); err != nil {
		return nil, err
	}
	config, err := r.config(dir, s)
	if err != nil {
		return nil, err
	}
	source, err := app.NewApp(dir)
	if err != nil {
		return nil, err
	}
	env := r.environment(s)
	result, err := core.GenerateBuildPlan(source, app.NewEnvironment(&env), &core.GenerateBuildPlanOptions{
		RailpackVersion: "pandastack", ConfigFilePath: config, PreviousVersions: r.installedVersions(),
	})
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil || !result.Success || result.Plan == nil {
		return nil, r.planFailed(result, err)
	}
	for _, m := range result.Logs {
		if m.Level == logger.Warn && m.Msg != configNotice {
			r.out.warn("%s", m.Msg)
		}
	}
	p := &buildPlan{
		Source: sub, Exclude: result.Plan.Exclude, Variables: result.Plan.Deploy.Variables,
		Paths: result.Plan.Deploy.Paths, Start: result.Plan.Deploy.StartCmd, Port: s.Port,
		Framework: frameworkOf(result.Metadata, s.Framework), Runtime: runtimeOf(result.Metadata["providers"]),
	}
	delete(p.Variables, "RAILPACK_VERSION")
	if v := result.ResolvedPackages[p.Runtime]; v != nil && v.ResolvedVersion != nil {
		p.Version = *v.ResolvedVersion
	}
	if err := r.translate(p, result.Plan, s); err != nil {
		return nil, err
	}
	if p.Start == "" && p.Static == nil {
		return nil, noStart(p.Framework)
	}
	return p, nil
}

func noStart(framework string) error {
	hint := "set start_command, for example to node server.js"
	if framework == "python" {
		hint = "set start_command, for example to uvicorn main:app --host 0.0.0.0 --port $PORT"
	}
	return invalid("start_command", hint, "it was not found how the app is started")
}

func runtimeOf(provider string) string {
	switch provider {
	case "golang":
		return "go"
	case "staticfile":
		return ""
	}
	return provider
}

// planFailed makes railpack's messages the failure of the build.
func (r *run) planFailed(result *core.BuildResult, err error) error {
	var said []string
	if result != nil {
		for _, m := range result.Logs {
			if m.Level == logger.Error {
				said = append(said, m.Msg)
			}
		}
	}
	if err != nil {
		said = append(said, err.Error())
	}
	message, _, _ := strings.Cut(strings.Join(said, "; "), "\n\n")
	switch {
	case strings.Contains(message, "failed to run mise") || strings.Contains(message, "failed to resolve version") ||
		strings.Contains(message, "failed to get latest version"):
		return invalid("", "name a version that the template has or that can be downloaded: .nvmrc, .python-version, "+
			"mise.toml, or engines in package.json", "a tool that the app asks for cannot be had: %s",
			firstLine(message))
	case strings.Contains(message, "could not determine how to build"), message == "":
		entries, err := os.ReadDir(r.source())
		if err == nil && len(entries) == 0 {
			return invalid("", "add the files of the app", "the source is empty")
		}
		return invalid("framework", "set framework, root_directory or start_command, or add a Dockerfile",
			"it was not found what kind of app this is")
	}
	return invalid("", "see the log", "%s", firstLine(message))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

// baseImages are railpack's own, in whose place the template is.
const baseImages = "ghcr.io/railwayapp/railpack-"

// translate takes over the steps of railpack's plan: in an order in which each finds what it needs, those that do not
// depend on the whole source first, without the web server of static files, and with tools and packages by name.
func (r *run) translate(p *buildPlan, from *plan.BuildPlan, s buildevent.Settings) error {
	p.Static = staticOf(from, s)
	if p.Static != nil {
		p.Start = ""
	}
	steps, err := order(from.Steps)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if p.Static != nil && (step.Name == "packages:caddy" || step.Name == "caddy") {
			continue
		}
		one := buildStep{Step: buildevent.Step{Name: step.Name}, Execute: step}
		for _, in := range step.Inputs {
			if in.Image != "" && !strings.HasPrefix(in.Image, baseImages) {
				return invalid("framework", "add a Dockerfile", "this kind of app needs the image %.100q", in.Image)
			}
			one.Local = one.Local || in.Local
			if in.Local {
				one.Include = append(one.Include, in.Include...)
			}
		}
		one.Execute.Commands = one.commands(p.Static != nil)
		one.Execute.Inputs = nil
		p.Steps = append(p.Steps, one)
	}
	if len(p.Steps) > buildevent.MaxSteps {
		return invalid("", "make them fewer", "railpack.json has %d steps, %d at most", len(p.Steps),
			buildevent.MaxSteps)
	}
	return nil
}

// aptCommand is how railpack installs packages of the distribution.
var aptCommand = regexp.MustCompile(`^sh -c 'apt-get update && apt-get install -y ([a-z0-9+.: -]+)'$`)

// commands returns the commands of a step but for those that installTools and installPackages stand for.
func (b *buildStep) commands(static bool) []plan.Command {
	var keep []plan.Command
	for _, c := range b.Execute.Commands {
		switch one := c.(type) {
		case plan.ExecCommand:
			if one.Cmd == "mise install" {
				b.Tools = toolsOf(b.Execute.Assets["generated-mise-toml"])
				continue
			}
			if m := aptCommand.FindStringSubmatch(one.Cmd); m != nil {
				b.Apt = append(b.Apt, strings.Fields(m[1])...)
				continue
			}
			if static && strings.HasPrefix(one.Cmd, "caddy ") {
				continue
			}
		case plan.FileCommand:
			if one.Name == "generated-mise-toml" || static && one.Name == "Caddyfile" {
				continue
			}
		case plan.PathCommand:
			if one.Path == "/mise/shims" {
				continue
			}
		}
		keep = append(keep, c)
	}
	return keep
}

var (
	caddyRoot     = regexp.MustCompile(`(?m)^\s*root \* (\S+)\s*$`)
	caddyFallback = regexp.MustCompile(`(?m)^\s*try_files .*\s/index\.html\s*$`)
)

// staticOf returns the files that railpack would serve with a web server of its own; nil if it starts a program.
func staticOf(from *plan.BuildPlan, s buildevent.Settings) *buildevent.Static {
	if s.StartCommand != "" || !strings.HasPrefix(from.Deploy.StartCmd, "caddy run ") {
		return nil
	}
	static := &buildevent.Static{Dir: "."}
	for _, step := range from.Steps {
		text, ok := step.Assets["Caddyfile"]
		if !ok {
			continue
		}
		if m := caddyRoot.FindStringSubmatch(text); m != nil {
			dir := m[1]
			if path.IsAbs(dir) {
				dir = strings.TrimPrefix(strings.TrimPrefix(dir, buildevent.App), "/")
			}
			static.Dir = path.Clean("./" + dir)
		}
		static.SPA = caddyFallback.MatchString(text)
	}
	return static
}

// order sorts steps so that each comes after those that it uses, and steps that use the whole source come last.
func order(steps []plan.Step) ([]plan.Step, error) {
	byName, rank := map[string]*plan.Step{}, map[string]int{}
	for i := range steps {
		byName[steps[i].Name] = &steps[i]
	}
	var visit func(s *plan.Step, depth int) (int, error)
	visit = func(s *plan.Step, depth int) (int, error) {
		if depth > len(steps) {
			return 0, invalid("", "correct the inputs", "railpack.json: the steps depend on each other in a circle")
		}
		if n, done := rank[s.Name]; done {
			return n, nil
		}
		n := 0
		for _, in := range s.Inputs {
			if in.Local {
				n = max(n, 1000)
			}
			if before := byName[in.Step]; before != nil {
				m, err := visit(before, depth+1)
				if err != nil {
					return 0, err
				}
				n = max(n, m+1)
			}
		}
		for _, c := range s.Commands {
			if one, ok := c.(plan.CopyCommand); ok && path.Clean(one.Src) == "." {
				n = max(n, 1000)
			}
		}
		rank[s.Name] = n
		return n, nil
	}
	for i := range steps {
		if _, err := visit(&steps[i], 0); err != nil {
			return nil, err
		}
	}
	sorted := slices.Clone(steps)
	slices.SortStableFunc(sorted, func(a, b plan.Step) int { return rank[a.Name] - rank[b.Name] })
	return sorted, nil
}

// offerMise puts a program where railpack looks for mise: this one, which knows what the template has.
func (r *run) offerMise() error {
	if err := os.MkdirAll(r.Planner, 0o755); err != nil {
		return err
	}
	script := "#!/bin/sh\n"
	for _, name := range slices.Sorted(maps.Keys(r.req.Env)) { // railpack hands on no variables of its own
		script += fmt.Sprintf("export %s=%s\n", name, quote(r.req.Env[name]))
	}
	script += fmt.Sprintf("exec %s mise \"$@\"\n", quote(r.Program))
	file := filepath.Join(r.Planner, "mise-"+mise.Version)
	if old, err := os.ReadFile(file); err == nil && string(old) == script {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(script), 0o700)
}
