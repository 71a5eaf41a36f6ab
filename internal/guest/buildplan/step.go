package buildplan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/patternmatcher"
	"github.com/railwayapp/railpack/core/plan"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// state is what the steps so far leave to later ones, beside files. It is in the machine, so that a build that starts
// from a kept step has it.
type state struct {
	Paths []string          `json:"paths,omitempty"` // later ones first in PATH
	Env   map[string]string `json:"env,omitempty"`
}

func (p Place) stateFile() string {
	return filepath.Join(p.Root, "/var/lib/pandastack/build-state.json")
}

func (r *run) readState() (state, error) {
	s := state{Env: map[string]string{}}
	data, err := os.ReadFile(r.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(data, &s)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	return s, err
}

func (r *run) writeState(s state) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.stateFile()), 0o755); err != nil {
		return err
	}
	return os.WriteFile(r.stateFile(), data, 0o600)
}

// keys computes the key of each step: a hash of the step before it, of its commands, of the files that it copies, and
// of the variables that it sees. Steps that copy the whole source are not worth keeping.
func (r *run) keys(p *buildPlan) error {
	before, local := "", false
	dir := filepath.Join(r.source(), p.Source)
	for i := range p.Steps {
		s := &p.Steps[i]
		sum := sha256.New()
		spec, err := json.Marshal(s)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s\n%s\n", before, spec)
		for _, name := range slices.Sorted(maps.Keys(r.visible(&s.Execute))) {
			fmt.Fprintf(sum, "%q=%q\n", name, r.req.Variables[name])
		}
		for _, name := range slices.Sorted(maps.Keys(r.req.Env)) {
			fmt.Fprintf(sum, "%q=%q\n", name, r.req.Env[name])
		}
		work := len(s.Tools) > 0 || len(s.Apt) > 0
		for _, c := range s.Execute.Commands {
			switch one := c.(type) {
			case plan.CopyCommand:
				local = local || path.Clean(one.Src) == "."
				if err := hashTree(sum, dir, one.Src); err != nil {
					return err
				}
			case plan.ExecCommand:
				work = true
			}
		}
		if s.Local {
			local = true
			if err := hashTree(sum, dir, "."); err != nil {
				return err
			}
		}
		before = hex.EncodeToString(sum.Sum(nil))
		s.Key, s.Keep = before, work && !local
	}
	return nil
}

// hashTree adds the names, modes and contents below a path of the source.
func hashTree(sum hash.Hash, dir, name string) error {
	top, err := within(dir, name)
	if err != nil {
		return err
	}
	return filepath.WalkDir(top, func(at string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && at == top {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		fmt.Fprintf(sum, "%q %o\n", rel, info.Mode()&(fs.ModeType|0o111))
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(at)
			fmt.Fprintf(sum, "%q\n", to)
			return err
		case info.Mode().IsRegular():
			f, err := os.Open(at)
			if err != nil {
				return err
			}
			defer f.Close() //nolint:errcheck // it was only read
			fmt.Fprintf(sum, "%d\n", info.Size())
			_, err = io.CopyN(sum, f, info.Size())
			return err
		}
		return nil
	})
}

// within returns a path below dir.
func within(dir, name string) (string, error) {
	name = path.Clean(name)
	if path.IsAbs(name) || !filepath.IsLocal(name) {
		return "", invalid("", "copy files of the repository", "a step copies %.100q, which is not in the source", name)
	}
	return filepath.Join(dir, name), nil
}

// visible returns the variables of the app that a step sees.
func (r *run) visible(s *plan.Step) map[string]string {
	seen := map[string]string{}
	for name, value := range r.req.Variables {
		for _, pattern := range s.Secrets {
			if ok, err := path.Match(pattern, name); err == nil && ok {
				seen[name] = value
			}
		}
	}
	return seen
}

// step executes one step of the plan.
func (r *run) step(ctx context.Context) error {
	p, err := r.readPlan()
	if err != nil {
		return err
	}
	if r.req.Step < 0 || r.req.Step >= len(p.Steps) {
		return fmt.Errorf("the plan has no step %d", r.req.Step)
	}
	s := &p.Steps[r.req.Step]
	r.out.begin(s.Name)
	st, err := r.readState()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.App, 0o755); err != nil {
		return err
	}
	maps.Copy(st.Env, s.Execute.Variables)
	if len(s.Tools) > 0 {
		paths, env, err := r.installTools(ctx, s.Tools)
		if err != nil {
			return err
		}
		st.Paths = append(paths, st.Paths...)
		maps.Copy(st.Env, env)
	}
	if len(s.Apt) > 0 {
		if err := r.installPackages(ctx, s.Apt); err != nil {
			return err
		}
	}
	if s.Local {
		if err := r.copyTree(p, ".", r.App); err != nil {
			return err
		}
	}
	for _, c := range s.Execute.Commands {
		if err := r.do(ctx, p, s, c, &st); err != nil {
			return err
		}
	}
	return r.writeState(st)
}

// do executes one command of a step.
func (r *run) do(ctx context.Context, p *buildPlan, s *buildStep, c plan.Command, st *state) error {
	switch one := c.(type) {
	case plan.PathCommand:
		st.Paths = append([]string{r.inApp(one.Path)}, st.Paths...)
		return nil
	case plan.CopyCommand:
		if one.Image != "" {
			return invalid("", "add a Dockerfile", "a step copies files of the image %.100q", one.Image)
		}
		to := one.Dest
		if to == "" {
			to = one.Src
		}
		return r.copyTree(p, one.Src, r.inApp(to))
	case plan.FileCommand:
		mode := one.Mode
		if mode == 0 {
			mode = 0o644
		}
		at := r.inApp(one.Path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		return os.WriteFile(at, []byte(s.Execute.Assets[one.Name]), mode)
	case plan.ExecCommand:
		title := one.CustomName
		if title == "" {
			title = one.Cmd
		}
		r.out.begin(s.Name)
		r.out.info("$ %s", title)
		err := r.exec(ctx, command{argv: []string{"/bin/sh", "-c", shellLine(one.Cmd)}, dir: r.App, env: r.stepEnv(s,
			st)})
		if err != nil {
			return r.commandFailed(ctx, title, err)
		}
		return nil
	}
	return invalid("", "use cmd, path, src or name", "step %q has a command of an unknown kind", s.Name)
}

// shellLine returns the line for the shell. railpack wraps lines for a shell in sh -c '...' without quoting what is
// inside, so that lines with quotes work only without the wrapping.
func shellLine(cmd string) string {
	if inner, ok := strings.CutPrefix(cmd, "sh -c '"); ok && strings.HasSuffix(inner, "'") {
		return strings.TrimSuffix(inner, "'")
	}
	return cmd
}

// inApp resolves a path of a plan: relative ones, and those below the directory of the app.
func (r *run) inApp(name string) string {
	name = path.Clean(name)
	if !path.IsAbs(name) {
		return filepath.Join(r.App, name)
	}
	if rel, ok := strings.CutPrefix(name, buildevent.App); ok && (rel == "" || rel[0] == '/') {
		return filepath.Join(r.App, rel)
	}
	return filepath.Join(r.Root, name)
}

// stepEnv is the environment of the commands of a step.
func (r *run) stepEnv(s *buildStep, st *state) map[string]string {
	env := r.toolEnv()
	maps.Copy(env, st.Env)
	maps.Copy(env, r.visible(&s.Execute))
	env["PATH"] = strings.Join(append(slices.Clone(st.Paths), defaultPath), ":")
	return env
}

// copyTree copies a file or directory of the source, links as links, without what the plan excludes.
func (r *run) copyTree(p *buildPlan, src, dst string) error {
	dir := filepath.Join(r.source(), p.Source)
	top, err := within(dir, src)
	if err != nil {
		return err
	}
	excluded, err := patternmatcher.New(p.Exclude)
	if err != nil {
		return invalid("", "correct it", "the patterns of .dockerignore or railpack.json are wrong: %s", err)
	}
	return filepath.WalkDir(top, func(at string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && at == top {
			return invalid("", "add it, or change the plan", "the source has no %.100q", src)
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if rel != "." {
			if skip, err := excluded.MatchesOrParentMatches(rel); err != nil || skip {
				return err
			}
		}
		if d.IsDir() && d.Name() == ".git" {
			return fs.SkipDir
		}
		inner, err := filepath.Rel(top, at)
		if err != nil {
			return err
		}
		return copyOne(at, filepath.Join(dst, inner), d)
	})
}

func copyOne(from, to string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch mode := info.Mode(); {
	case mode.IsDir():
		if old, err := os.Lstat(to); err == nil && !old.IsDir() {
			if err := os.Remove(to); err != nil {
				return err
			}
		}
		return os.MkdirAll(to, 0o755)
	case mode&fs.ModeSymlink != 0:
		link, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		return os.Symlink(link, to)
	case mode.IsRegular():
		return copyFile(from, to, mode.Perm())
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was only read
	if err := errors.Join(os.RemoveAll(to), os.MkdirAll(filepath.Dir(to), 0o755)); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// finish says what was built, and makes the machine fit to be kept.
func (r *run) finish(context.Context) error {
	r.out.begin("finish")
	p, err := r.readPlan()
	if err != nil {
		return err
	}
	st, err := r.readState()
	if err != nil {
		return err
	}
	result := &buildevent.Result{
		Framework: p.Framework, Runtime: p.Runtime, RuntimeVersion: p.Version, Start: p.Start, Port: p.Port,
		Workdir: path.Join(buildevent.App, p.Workdir), Env: map[string]string{},
	}
	maps.Copy(result.Env, p.Variables)
	var paths []string
	for _, dir := range append(slices.Clone(p.Paths), st.Paths...) {
		if dir != "/mise/shims" && !slices.Contains(paths, dir) {
			paths = append(paths, dir)
		}
	}
	result.Env["PATH"] = strings.Join(append(paths, defaultPath), ":")
	for _, name := range []string{"GOTOOLCHAIN", "VIRTUAL_ENV"} {
		if v := st.Env[name]; v != "" {
			result.Env[name] = v
		}
	}
	if p.Static != nil {
		static, err := r.foundStatic(p.Static)
		if err != nil {
			return err
		}
		result.Static = static
	}
	for _, dir := range []string{r.Dir, r.Planner} { // the app is in its own directory
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	syscall.Sync()
	if os.Getuid() == 0 && r.Root == "/" {
		_ = os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0) // what the page cache holds is in snapshots
	}
	r.out.event(buildevent.Event{Kind: buildevent.KindResult, Result: result})
	return nil
}

// foundStatic checks the directory of static files.
func (r *run) foundStatic(s *buildevent.Static) (*buildevent.Static, error) {
	dir := filepath.Join(r.App, s.Dir)
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return nil, invalid("output_directory", "set output_directory to where the build writes its files",
			"the build made no directory %.100q", s.Dir)
	}
	found := &buildevent.Static{Dir: path.Join(buildevent.App, s.Dir), SPA: s.SPA}
	if exists(filepath.Join(dir, "404.html")) {
		found.NotFound, found.SPA = "404.html", false
	}
	return found, nil
}
