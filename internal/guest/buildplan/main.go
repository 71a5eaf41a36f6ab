package buildplan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// Place is where the program works.
type Place struct {
	Dir       string // source and plan; buildevent.Dir in a machine
	App       string // where the app is built; buildevent.App
	Root      string // of the file system: "/"
	Installed string // where the template has the tools that mise manages
	Mise      string // the template's mise
	Tools     string // where other tools are installed
	Planner   string // directory in which railpack looks for mise
	Program   string // this program
}

// Machine is the Place of a machine.
var Machine = Place{
	Dir: buildevent.Dir, App: buildevent.App, Root: "/", Installed: "/usr/local/share/mise/installs",
	Mise: "/usr/local/bin/mise", Tools: "/opt/pandastack/tools", Planner: plannerDir,
	Program: buildevent.Program,
}

// run is one run of the program.
type run struct {
	Place
	req buildevent.Request
	out *output
}

func (p Place) source() string   { return filepath.Join(p.Dir, "source") }
func (p Place) planFile() string { return filepath.Join(p.Dir, "plan.json") }

// Main runs one of the verbs and returns the exit code of the process.
//
// setup, clone, plan, step and finish read a request and write events. unpack and restore read an archive of the source
// or what pack wrote.
func (p Place) Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	if token, asked := variables()[askpassVariable]; asked { // git asks for a user name, then for a password
		if len(args) > 0 && strings.HasPrefix(args[0], "Username") {
			token = "x-access-token"
		}
		fmt.Fprintln(stdout, token)
		return 0
	}
	if len(args) == 0 {
		fmt.Fprintln(stderr, "usage: pandastack-build setup|unpack|clone|plan|pack|restore|step|finish")
		return 2
	}
	if args[0] == "mise" {
		return p.mise(ctx, args[1:], stdout, stderr)
	}
	if args[0] == "pack" {
		if err := p.pack(stdout, args[1:]); err != nil {
			fmt.Fprintln(stderr, "pack:", err)
			return 1
		}
		return 0
	}
	r := &run{Place: p, out: newOutput(stdout, buildevent.MaxOutput)}
	err := r.verb(ctx, args[0], stdin)
	if err == nil {
		return 0
	}
	r.out.fail(failureOf(err))
	return 1
}

func (r *run) verb(ctx context.Context, verb string, stdin io.Reader) error {
	verbs := map[string]func(context.Context) error{
		"setup": r.setup, "clone": r.clone, "plan": r.plan, "step": r.step, "finish": r.finish,
	}
	if verb == "unpack" || verb == "restore" {
		return r.unpack(verb, stdin)
	}
	do, known := verbs[verb]
	if !known {
		return fmt.Errorf("unknown verb %q", verb)
	}
	in := json.NewDecoder(io.LimitReader(stdin, 8<<20))
	if err := in.Decode(&r.req); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if n := r.req.Limits.OutputBytes; n > 0 {
		r.out.limit = n
	}
	return do(ctx)
}

// failureOf returns what to report of an error.
func failureOf(err error) *buildevent.Failure {
	var f *buildevent.Failure
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, syscall.ENOSPC):
		return noSpace()
	}
	return &buildevent.Failure{Code: buildevent.CodeBuildFailed, Message: err.Error()}
}

func noSpace() *buildevent.Failure {
	return &buildevent.Failure{
		Code: buildevent.CodeNoSpace, Message: "the disk of the build's machine is full",
		Hint: "use a template with a larger disk, or build less",
	}
}

// invalid is the failure of a field that the user can set.
func invalid(field, hint, format string, args ...any) error {
	return &buildevent.Failure{
		Code: buildevent.CodeInvalid, Field: field, Hint: hint, Message: fmt.Sprintf(format, args...),
	}
}

// variables returns the environment in which this program was started, by git or by railpack.
func variables() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

// readFile reads a small file of the source; nil if there is none.
func readFile(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = invalid("", "make it smaller", "%s has more than %d bytes", filepath.Base(name), limit)
	}
	return data, err
}
