package dockerfile

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// The bounds of a text.
const (
	MaxText   = 256 << 10 // bytes
	maxStages = 200
	maxSteps  = 1000 // of the stages that the target needs
)

// DefaultPath is the PATH of a stage whose base has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Base describes what a stage starts from.
type Base struct {
	Config  Config
	OnBuild []string // instructions to execute at the start of every stage on this base
}

// Options are the options of Parse.
type Options struct {
	Args     map[string]string // build arguments
	Target   string            // name or number of a stage; "": the last one
	Platform string            // such as "linux/amd64"; "": Linux on this processor
	// Base resolves the reference of a FROM. It is called once per reference that the target needs. Parse wraps its
	// errors in an Error. Nil: every reference has an empty configuration.
	Base func(ref string) (Base, error)
}

// Parse reads a Dockerfile. Its errors are of type *Error.
func Parse(text []byte, opt Options) (*Plan, error) {
	if len(text) > MaxText {
		return nil, &Error{Message: fmt.Sprintf("the text is larger than %d bytes", MaxText)}
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return nil, &Error{Line: 1 + bytes.Count(text[:i], []byte("\n")), Message: "zero byte in the text"}
	}
	if opt.Platform == "" {
		opt.Platform = "linux/" + runtime.GOARCH
	}
	ast, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		return nil, withLocation(err)
	}
	p := &planner{opt: opt, exp: newExpander(ast.EscapeToken), used: map[string]bool{}, bases: map[string]Base{}}
	p.warn(ast.Warnings)
	if err := p.instructions(ast.AST); err != nil {
		return nil, err
	}
	if err := p.globals(); err != nil {
		return nil, err
	}
	target, err := p.target()
	if err != nil {
		return nil, err
	}
	if err := p.link(target); err != nil {
		return nil, err
	}
	plan, err := p.plan(target)
	if err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(opt.Args) {
		if !p.used[name] && !isProxy(name) {
			p.warnings = append(p.warnings, fmt.Sprintf("build argument %s is not used", name))
		}
	}
	plan.Warnings = p.warnings
	return plan, nil
}

// withLocation returns an error of the parser as an Error.
func withLocation(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	e := &Error{Message: strings.TrimPrefix(err.Error(), "dockerfile parse error on ")}
	if at, ok := errors.AsType[*parser.LocationError](err); ok {
		if ranges := at.Locations; len(ranges) > 0 && len(ranges[0]) > 0 {
			e.Line = ranges[0][0].Start.Line
			e.Message = strings.TrimPrefix(e.Message, fmt.Sprintf("line %d: ", e.Line))
		}
	}
	return e
}

// draft is a stage of the text, which the target may or may not need.
type draft struct {
	stage    instructions.Stage
	base     int // index in planner.drafts, or -1
	ref      string
	needs    []int // indices in planner.drafts of the stages that it uses, base included
	from     map[instructions.Command]int
	index    int // in Plan.Stages; -1 before it is planned
	implicit bool
}

func (d *draft) line() int { return lineOf(d.stage.Location) }

// planner is the state of one Parse.
type planner struct {
	opt      Options
	exp      expander
	meta     []instructions.ArgCommand
	drafts   []*draft
	global   map[string]string // global arguments with a value
	platform map[string]string // predefined arguments
	used     map[string]bool   // build arguments that the text declares
	bases    map[string]Base
	warnings []string
	steps    int
	ports    int // number of ports in EXPOSE
}

func (p *planner) warn(all []parser.Warning) {
	for _, w := range all {
		line := 0
		if w.Location != nil {
			line = w.Location.Start.Line
		}
		p.warnings = append(p.warnings, fmt.Sprintf("line %d: %s", line, truncate(w.Short, 200)))
	}
}

// instructions parses the text into drafts.
func (p *planner) instructions(ast *parser.Node) error {
	for _, node := range ast.Children {
		fail := func(err error) error {
			return &Error{
				Line:        node.StartLine,
				Instruction: strings.ToUpper(truncate(node.Value, 40)),
				Message:     err.Error(),
			}
		}
		cmd, err := instructions.ParseInstruction(node)
		if _, unknown := errors.AsType[*instructions.UnknownInstructionError](err); unknown {
			return &Error{Line: node.StartLine, Message: truncate(err.Error(), 200)}
		} else if err != nil {
			return fail(err)
		}
		switch c := cmd.(type) {
		case *instructions.Stage:
			if len(p.drafts) == maxStages {
				return fail(fmt.Errorf("more than %d stages", maxStages))
			}
			p.drafts = append(p.drafts, &draft{stage: *c, base: -1, index: -1, from: map[instructions.Command]int{}})
		case *instructions.ArgCommand:
			if len(p.drafts) == 0 {
				p.meta = append(p.meta, *c)
				continue
			}
			p.last().AddCommand(c)
		case instructions.Command:
			if len(p.drafts) == 0 {
				return fail(errors.New("only ARG is allowed before the first FROM"))
			}
			p.last().AddCommand(c)
		}
	}
	if len(p.drafts) == 0 {
		return &Error{Message: "the text has no FROM"}
	}
	return nil
}

func (p *planner) last() *instructions.Stage { return &p.drafts[len(p.drafts)-1].stage }

// globals sets the values of the arguments before the first FROM.
func (p *planner) globals() error {
	p.platform = platformArgs(p.opt.Platform, p.opt.Target)
	p.global = map[string]string{}
	for name, value := range p.platform {
		if given, ok := p.opt.Args[name]; ok {
			value = given
		}
		p.platform[name], p.global[name] = value, value
	}
	for _, cmd := range p.meta {
		for _, arg := range cmd.Args {
			fail := func(err error) error {
				return &Error{Line: lineOf(cmd.Location()), Instruction: "ARG", Message: err.Error()}
			}
			key, err := p.exp.word(arg.Key, p.global)
			if err != nil {
				return fail(err)
			}
			p.used[key] = true
			switch given, ok := p.opt.Args[key]; {
			case ok:
				p.global[key] = given
			case arg.Value != nil:
				if p.global[key], err = p.exp.word(*arg.Value, p.global); err != nil {
					return fail(err)
				}
			}
			if len(p.global) > maxVars {
				return fail(fmt.Errorf("more than %d arguments", maxVars))
			}
		}
	}
	return nil
}

// target returns the index of the target stage.
func (p *planner) target() (int, error) {
	if p.opt.Target == "" {
		return len(p.drafts) - 1, nil
	}
	if i, ok := p.find(p.opt.Target, len(p.drafts)); ok {
		return i, nil
	}
	return 0, &Error{Message: fmt.Sprintf("target: stage %q not found", truncate(p.opt.Target, 100))}
}

// find finds a stage with an index below before, by name (the last of that name) or by number.
func (p *planner) find(name string, before int) (int, bool) {
	for i := before - 1; i >= 0; i-- {
		if n := p.drafts[i].stage.Name; n != "" && strings.EqualFold(n, name) {
			return i, true
		}
	}
	i, err := strconv.Atoi(name)
	return i, err == nil && i >= 0 && i < before && !p.drafts[i].implicit
}

// link resolves the bases and COPY sources of the stages that target needs.
func (p *planner) link(target int) error {
	seen := make(map[int]bool)
	var visit func(int) error
	visit = func(i int) error {
		if seen[i] {
			return nil
		}
		seen[i] = true
		if err := p.linkOne(i); err != nil {
			return err
		}
		for _, need := range p.drafts[i].needs {
			if err := visit(need); err != nil {
				return err
			}
		}
		return nil
	}
	return visit(target)
}

func (p *planner) linkOne(i int) error {
	d := p.drafts[i]
	if d.implicit {
		return nil
	}
	fail := func(format string, args ...any) error {
		return &Error{Line: d.line(), Instruction: "FROM", Message: fmt.Sprintf(format, args...)}
	}
	if err := p.checkPlatform(d); err != nil {
		return err
	}
	name, err := p.exp.word(d.stage.BaseName, p.global)
	switch {
	case err != nil:
		return fail("%v", err)
	case name == "":
		return fail("base %q is empty after variable expansion", truncate(d.stage.BaseName, 100))
	case len(name) > 1024:
		return fail("the reference is longer than 1024 bytes")
	}
	if base, ok := p.findByName(name, i); ok {
		d.base, d.needs = base, append(d.needs, base)
	} else {
		d.ref = name
	}
	for _, cmd := range d.stage.Commands {
		if err := p.linkCopy(i, cmd); err != nil {
			return err
		}
	}
	return nil
}

// findByName finds the base of stage i. In FROM, a number is a reference, not a stage.
func (p *planner) findByName(name string, i int) (int, bool) {
	if _, err := strconv.Atoi(name); err == nil {
		return 0, false
	}
	return p.find(name, i)
}

func (p *planner) checkPlatform(d *draft) error {
	if d.stage.Platform == "" {
		return nil
	}
	want, err := p.exp.word(d.stage.Platform, p.global)
	if err != nil {
		return &Error{Line: d.line(), Instruction: "FROM", Message: err.Error()}
	}
	if want != "" && !samePlatform(want, p.opt.Platform) {
		return &Error{Line: d.line(), Instruction: "FROM", Unsupported: true,
			Message: fmt.Sprintf(
				"--platform=%s is not supported: this server builds for %s",
				truncate(want, 60),
				p.opt.Platform,
			)}
	}
	return nil
}

// linkCopy resolves the stage that cmd copies from. A reference to an image or template becomes a stage without steps.
func (p *planner) linkCopy(i int, cmd instructions.Command) error {
	c, ok := cmd.(*instructions.CopyCommand)
	if !ok || c.From == "" {
		return nil
	}
	d := p.drafts[i]
	name, err := p.exp.word(c.From, p.global)
	if err != nil || name == "" {
		return &Error{
			Line:        lineOf(c.Location()),
			Instruction: "COPY",
			Message:     fmt.Sprintf("--from=%s is empty after variable expansion", truncate(c.From, 100)),
		}
	}
	from, ok := p.find(name, i)
	if !ok {
		if err := p.checkReference(name); err != nil {
			return &Error{Line: lineOf(c.Location()), Instruction: "COPY", Message: err.Error()}
		}
		from = len(p.drafts)
		p.drafts = append(p.drafts, &draft{base: -1, ref: name, index: -1, implicit: true,
			stage: instructions.Stage{Location: c.Location()}})
	}
	d.from[cmd] = from
	if !slices.Contains(d.needs, from) {
		d.needs = append(d.needs, from)
	}
	return nil
}

// checkReference returns an error if name, which is not an earlier stage, cannot be a reference either.
func (p *planner) checkReference(name string) error {
	if _, err := strconv.Atoi(name); err == nil {
		return fmt.Errorf("--from=%s: no such stage before this one", truncate(name, 100))
	}
	if _, later := p.find(name, len(p.drafts)); later {
		return fmt.Errorf("--from=%s: the stage must come before this one", truncate(name, 100))
	}
	if len(name) > 1024 {
		return errors.New("--from is longer than 1024 bytes")
	}
	return nil
}

// plan plans the stages that target needs, each after those it uses.
func (p *planner) plan(target int) (*Plan, error) {
	plan := &Plan{}
	states := map[int]*stageBuilder{}
	var visit func(int) error
	visit = func(i int) error {
		d := p.drafts[i]
		if d.index >= 0 {
			return nil
		}
		for _, need := range slices.Sorted(slices.Values(d.needs)) {
			if err := visit(need); err != nil {
				return err
			}
		}
		st, err := p.build(d, states)
		if err != nil {
			return err
		}
		d.index = len(plan.Stages)
		states[i] = st
		plan.Stages = append(plan.Stages, st.stage)
		return nil
	}
	if err := visit(target); err != nil {
		return nil, err
	}
	plan.Target = len(plan.Stages) - 1
	return plan, nil
}

func lineOf(at []parser.Range) int {
	if len(at) == 0 {
		return 0
	}
	return at[0].Start.Line
}

// truncate returns the first n bytes of s, as valid UTF-8.
func truncate(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "") + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
