package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// stageBuilder executes the instructions of a stage.
type stageBuilder struct {
	p      *planner
	d      *draft
	stage  Stage
	env    vars // variables and arguments of the steps
	config vars // Stage.Config.Env
	cmdSet bool // CMD was in this stage
	line   int
	text   string
}

// build executes the instructions of d.
func (p *planner) build(d *draft, states map[int]*stageBuilder) (*stageBuilder, error) {
	st := &stageBuilder{p: p, d: d, line: d.line()}
	st.stage = Stage{Name: d.stage.Name, Line: d.line()}
	if d.implicit {
		st.stage.Name = ""
	}
	onBuild, err := st.begin(states)
	if err != nil {
		return nil, &Error{Line: d.line(), Instruction: "FROM", Message: err.Error()}
	}
	if d.implicit {
		return st, nil
	}
	for _, cmd := range append(onBuild, d.stage.Commands...) {
		if err := st.dispatch(cmd); err != nil {
			if e, ok := errors.AsType[*Error](err); ok {
				return nil, e
			}
			return nil, &Error{Line: st.line, Instruction: strings.ToUpper(cmd.Name()), Message: err.Error()}
		}
	}
	st.stage.Config.Env = st.config.snapshot()
	return st, nil
}

// begin sets the configuration before the first instruction. It returns the ONBUILD instructions of the base.
func (st *stageBuilder) begin(states map[int]*stageBuilder) ([]instructions.Command, error) {
	d := st.d
	var onBuild []instructions.Command
	switch {
	case d.base >= 0:
		from := states[d.base]
		st.stage.From = Source{Kind: FromStage, Stage: from.d.index}
		st.stage.Config = from.stage.Config.clone()
		st.env, st.config = copyVars(from.env.m), copyVars(from.stage.Config.Env)
	case strings.EqualFold(d.ref, "scratch") && !d.implicit:
		st.stage.From = Source{Kind: FromScratch}
	default:
		base, err := st.p.base(d.ref)
		if err != nil {
			return nil, err
		}
		st.stage.From = Source{Kind: FromReference, Ref: d.ref, Base: base.Config.clone()}
		st.stage.Config = base.Config.clone()
		st.env, st.config = copyVars(base.Config.Env), copyVars(base.Config.Env)
		if onBuild, err = triggers(base.OnBuild); err != nil {
			return nil, err
		}
	}
	if _, ok := st.env.m["PATH"]; !ok {
		if err := errors.Join(st.env.set("PATH", DefaultPath), st.config.set("PATH", DefaultPath)); err != nil {
			return nil, err
		}
	}
	if st.stage.Config.Workdir == "" {
		st.stage.Config.Workdir = "/"
	}
	if len(st.stage.Config.Shell) == 0 {
		st.stage.Config.Shell = []string{"/bin/sh", "-c"}
	}
	st.stage.Config.Env = st.config.snapshot()
	return onBuild, nil
}

func (p *planner) base(ref string) (Base, error) {
	if p.opt.Base == nil {
		return Base{}, nil
	}
	if b, ok := p.bases[ref]; ok {
		return b, nil
	}
	b, err := p.opt.Base(ref)
	if err == nil {
		p.bases[ref] = b
	}
	return b, err
}

// triggers parses the ONBUILD instructions of a base.
func triggers(lines []string) ([]instructions.Command, error) {
	text := strings.Join(lines, "\n")
	if len(lines) == 0 {
		return nil, nil
	} else if len(text) > MaxText {
		return nil, errors.New("the ONBUILD instructions of the base are too large")
	}
	ast, err := parser.Parse(bytes.NewReader([]byte(text)))
	if err != nil {
		return nil, fmt.Errorf("the ONBUILD instructions of the base: %w", err)
	}
	var all []instructions.Command
	for _, node := range ast.AST.Children {
		cmd, err := instructions.ParseCommand(node)
		if err == nil {
			if c, ok := cmd.(*instructions.CopyCommand); ok && c.From != "" {
				err = errors.New("COPY --from is not supported in ONBUILD")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the ONBUILD instructions of the base: %w", err)
		}
		all = append(all, trigger{cmd})
	}
	return all, nil
}

// trigger is an ONBUILD instruction of the base.
type trigger struct{ instructions.Command }

// dispatch executes one instruction.
func (st *stageBuilder) dispatch(cmd instructions.Command) error {
	if t, ok := cmd.(trigger); ok {
		st.line, cmd = st.d.line(), t.Command
	} else {
		st.line = lineOf(cmd.Location())
	}
	st.text = truncate(fmt.Sprint(cmd), 4<<10)
	if err := st.expand(cmd); err != nil {
		return err
	}
	switch c := cmd.(type) {
	case *instructions.EnvCommand:
		for _, kv := range c.Env {
			if err := errors.Join(st.env.set(kv.Key, kv.Value), st.config.set(kv.Key, kv.Value)); err != nil {
				return err
			}
		}
	case *instructions.ArgCommand:
		return st.arg(c)
	case *instructions.RunCommand:
		return st.run(c)
	case *instructions.CopyCommand:
		return st.copy(c)
	case *instructions.AddCommand:
		return st.add(c)
	case *instructions.WorkdirCommand:
		return st.workdir(c)
	case *instructions.VolumeCommand:
		return st.volume(c)
	case *instructions.OnbuildCommand:
		return st.unsupported("ONBUILD", "templates keep no instructions for other builds")
	default:
		return st.configure(cmd)
	}
	return nil
}

// expand replaces the variables in cmd by their values.
func (st *stageBuilder) expand(cmd instructions.Command) error {
	if _, isArg := cmd.(*instructions.ArgCommand); isArg {
		return nil
	}
	if c, ok := cmd.(instructions.SupportsSingleWordExpansion); ok {
		if err := c.Expand(func(word string) (string, error) { return st.p.exp.word(word, st.env.m) }); err != nil {
			return err
		}
	}
	if c, ok := cmd.(instructions.SupportsSingleWordExpansionRaw); ok {
		return c.ExpandRaw(func(text string) (string, error) { return st.p.exp.document(text, st.env.m) })
	}
	return nil
}

func (st *stageBuilder) unsupported(instruction, format string, args ...any) error {
	return &Error{
		Line:        st.line,
		Instruction: instruction,
		Message:     fmt.Sprintf("not supported: "+format, args...),
		Unsupported: true,
	}
}

func (st *stageBuilder) warn(format string, args ...any) {
	st.p.warnings = append(st.p.warnings, fmt.Sprintf("line %d: ", st.line)+fmt.Sprintf(format, args...))
}

// step adds a step with the current configuration.
func (st *stageBuilder) step(s Step) error {
	if st.p.steps++; st.p.steps > maxSteps {
		return fmt.Errorf("more than %d steps", maxSteps)
	}
	c := &st.stage.Config
	s.Line, s.Text, s.Env = st.line, st.text, st.env.snapshot()
	s.User, s.Workdir, s.Shell = c.User, c.Workdir, slices.Clone(c.Shell)
	st.stage.Steps = append(st.stage.Steps, s)
	return nil
}

// arg declares arguments. Their value is the build argument, or else the default, or else the global argument.
func (st *stageBuilder) arg(c *instructions.ArgCommand) error {
	for _, a := range c.Args {
		key, err := st.p.exp.word(a.Key, st.env.m)
		if err != nil {
			return err
		}
		st.p.used[key] = true
		value, ok := st.p.opt.Args[key]
		if !ok && a.Value != nil {
			if value, err = st.p.exp.word(*a.Value, st.env.m); err != nil {
				return err
			}
			ok = true
		}
		if !ok {
			value, ok = st.p.global[key]
		}
		if !ok {
			continue
		}
		if err := st.env.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (st *stageBuilder) run(c *instructions.RunCommand) error {
	if err := st.runFlags(c); err != nil {
		return err
	}
	r, err := st.command(c.ShellDependantCmdLine)
	if err != nil {
		return err
	}
	for _, name := range sortedKeys(st.p.opt.Args) {
		if _, declared := st.env.m[name]; isProxy(name) && !declared {
			if r.Proxy == nil {
				r.Proxy = map[string]string{}
			}
			r.Proxy[name] = st.p.opt.Args[name]
		}
	}
	return st.step(Step{Kind: KindRun, Run: r})
}

// runFlags refuses unsupported flags of RUN.
func (st *stageBuilder) runFlags(c *instructions.RunCommand) error {
	for _, flag := range c.FlagsUsed {
		switch {
		case flag == "network" && instructions.GetNetwork(c) == instructions.NetworkDefault:
		case flag == "security" && instructions.GetSecurity(c) == instructions.SecuritySandbox:
		case flag == "mount":
			return st.unsupported(
				"RUN",
				"--mount: copy the files into the stage with COPY, or fetch them in the command",
			)
		default:
			return st.unsupported("RUN", "--%s with this value: every command runs in the machine of the build", flag)
		}
	}
	return nil
}

// scriptPath is the path of a here-document with an interpreter line while it runs.
const scriptPath = "/run/dockerfile-script"

// command returns the program of a RUN.
func (st *stageBuilder) command(c instructions.ShellDependantCmdLine) (*Run, error) {
	argv, r := slices.Clone(c.CmdLine), &Run{}
	if len(c.Files) > 0 {
		if len(argv) != 1 || !c.PrependShell {
			return nil, errors.New("a here-document needs the shell form")
		}
		doc, data := parser.MustParseHeredoc(argv[0]), c.Files[0].Data
		if c.Files[0].Chomp {
			data = parser.ChompHeredocContent(data)
		}
		switch {
		case doc != nil && strings.HasPrefix(data, "#!"):
			r.ScriptPath, r.Script, argv = scriptPath, data, []string{scriptPath}
		case doc != nil:
			argv = []string{data}
		default:
			var full strings.Builder
			full.WriteString(argv[0])
			for _, f := range c.Files {
				full.WriteString("\n" + f.Data + f.Name)
			}
			argv = []string{full.String()}
		}
	}
	if c.PrependShell {
		argv = append(slices.Clone(st.stage.Config.Shell), strings.Join(argv, " "))
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("the command is empty")
	}
	for _, a := range argv {
		if len(a) > maxValue {
			return nil, fmt.Errorf("the command is larger than %d bytes", maxValue)
		}
	}
	r.Argv = argv
	return r, nil
}

// absolute returns p relative to the working directory as an absolute path, with a trailing slash if p has one.
func (st *stageBuilder) absolute(p string) (string, error) {
	if strings.Contains(p, "\x00") || len(p) > 4096 {
		return "", errors.New("path has a zero byte or is longer than 4096 bytes")
	}
	full := p
	if !path.IsAbs(p) {
		full = st.stage.Config.Workdir + "/" + p
	}
	clean := path.Clean(full)
	if clean != "/" && (strings.HasSuffix(p, "/") || p == "." || strings.HasSuffix(p, "/.") || p == "") {
		clean += "/"
	}
	return clean, nil
}

func (st *stageBuilder) workdir(c *instructions.WorkdirCommand) error {
	if c.Path == "" {
		return errors.New("path is empty after variable expansion")
	}
	dir, err := st.absolute(c.Path)
	if err != nil {
		return err
	}
	dir = path.Clean(dir)
	err = st.step(Step{Kind: KindDir, Dir: dir})
	st.stage.Config.Workdir = dir
	return err
}

func (st *stageBuilder) volume(c *instructions.VolumeCommand) error {
	for _, v := range c.Volumes {
		dir, err := st.absolute(v)
		if err != nil {
			return err
		}
		dir = path.Clean(dir)
		st.warn("VOLUME %s makes an ordinary directory of the disk", truncate(dir, 100))
		if err := st.step(Step{Kind: KindDir, Dir: dir}); err != nil {
			return err
		}
		if c := &st.stage.Config; !slices.Contains(c.Volumes, dir) {
			c.Volumes = append(c.Volumes, dir)
			slices.Sort(c.Volumes)
		}
	}
	return nil
}

// setLabel sets a label of the stage.
func (st *stageBuilder) setLabel(name, value string) error {
	c := &st.stage.Config
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	c.Labels = maps.Clone(c.Labels)
	c.Labels[name] = value
	if len(c.Labels) > maxVars {
		return fmt.Errorf("more than %d labels", maxVars)
	}
	return nil
}
