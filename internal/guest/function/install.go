package function

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// Managers of packages that a machine lacks are installed in these versions; package.json may name another.
const (
	versionUV = "0.9.7"
	// Poetry, and the plugin that has it read an index like pip does.
	versionPoetry = "2.2.1"
	versionMirror = "0.6.5"
	versionPNPM   = "9.15.9"
	versionYarn   = "1.22.22"
	versionBun    = "1.3.1"
)

// installer installs the dependencies of one bundle.
type installer struct {
	Place
	out *events
	env []string
}

// install installs dependencies with the package manager that they are written for, and returns its name.
func (p Place) install(ctx context.Context, req fnruntime.BuildRequest, out *events) (string, error) {
	i := &installer{Place: p, out: out}
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	maps.Copy(env, map[string]string{"HOME": "/root", "CI": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
		"PIP_ROOT_USER_ACTION": "ignore", "PIP_NO_INPUT": "1", "NPM_CONFIG_FUND": "false",
		"NPM_CONFIG_AUDIT": "false", "NPM_CONFIG_UPDATE_NOTIFIER": "false"})
	maps.Copy(env, req.Env)
	for name, value := range env {
		i.env = append(i.env, name+"="+value)
	}
	slices.Sort(i.env)
	if err := os.MkdirAll(p.State, 0o755); err != nil {
		return "", err
	}
	switch req.Runtime {
	case "python":
		return i.python(ctx)
	case "nodejs":
		return i.node(ctx)
	}
	return "", nil // a program brings what it needs
}

func (i *installer) exists(name string) bool {
	info, err := os.Stat(filepath.Join(i.Code, name))
	return err == nil && info.Mode().IsRegular()
}

// run runs a command in the directory of the function and sends its output.
func (i *installer) run(ctx context.Context, argv ...string) error {
	i.out.line("$ " + strings.Join(argv, " "))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = i.Code, i.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error {
		killTree(cmd.Process.Pid, 0)
		return nil
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 64<<10), 1<<20)
	last := ""
	for lines.Scan() {
		if text := strings.TrimSpace(lines.Text()); text != "" {
			last = text
		}
		i.out.line(strings.ToValidUTF8(lines.Text(), "?"))
	}
	err = errors.Join(lines.Err(), cmd.Wait())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s failed: %w: %.1000s", filepath.Base(argv[0]), err, last)
	}
	return nil
}

// python installs packages into an environment that also has those of the template.
func (i *installer) python(ctx context.Context) (string, error) {
	uvLock, poetryLock := i.exists("uv.lock"), i.exists("poetry.lock")
	requirements, project := i.exists("requirements.txt"), i.exists("pyproject.toml")
	if !requirements && !project {
		return "", nil
	}
	system, err := exec.LookPath("python3")
	if err != nil {
		return "", errors.New("the template has no python3: use another template")
	}
	err = i.run(ctx, system, "-m", "venv", "--system-site-packages", "--without-pip", i.packages())
	if err != nil {
		return "", err
	}
	python := filepath.Join(i.packages(), "bin", "python")
	switch {
	case uvLock && project:
		uv, err := i.uv(ctx, python)
		if err != nil {
			return "", err
		}
		i.env = append(i.env, "UV_PROJECT_ENVIRONMENT="+i.packages(), "UV_PYTHON="+python, "UV_PYTHON_DOWNLOADS=never",
			"UV_NO_CACHE=1", "VIRTUAL_ENV="+i.packages())
		return "uv", i.run(ctx, uv, "sync", "--locked", "--no-dev", "--no-install-project", "--inexact")
	case poetryLock && project:
		return "poetry", i.poetry(ctx, system)
	case requirements:
		return "pip", i.run(ctx, python, "-m", "pip", "install", "--no-cache-dir", "-r", "requirements.txt")
	}
	deps, err := projectDependencies(ctx, python, filepath.Join(i.Code, "pyproject.toml"))
	if err != nil || len(deps) == 0 {
		return "", err
	}
	return "pip", i.run(ctx, append([]string{python, "-m", "pip", "install", "--no-cache-dir", "--"}, deps...)...)
}

// uv returns the program uv, which is installed if the template has none.
func (i *installer) uv(ctx context.Context, python string) (string, error) {
	if program, err := exec.LookPath("uv"); err == nil {
		return program, nil
	}
	tools := filepath.Join(i.State, "uv")
	err := i.run(ctx, python, "-m", "pip", "install", "--no-cache-dir", "--target", tools, "uv=="+versionUV)
	return filepath.Join(tools, "bin", "uv"), err
}

// poetry installs what poetry.lock has, with Poetry in an environment of its own.
func (i *installer) poetry(ctx context.Context, system string) error {
	tools, cache := filepath.Join(i.State, "poetry"), filepath.Join(i.State, "poetry-cache")
	if err := i.run(ctx, system, "-m", "venv", "--system-site-packages", "--without-pip", tools); err != nil {
		return err
	}
	err := i.run(ctx, filepath.Join(tools, "bin", "python"), "-m", "pip", "install", "--no-cache-dir",
		"poetry=="+versionPoetry, "poetry-plugin-pypi-mirror=="+versionMirror)
	if err != nil {
		return err
	}
	if index, ok := lookup(i.env, "PIP_INDEX_URL"); ok {
		i.env = append(i.env, "POETRY_PYPI_MIRROR_URL="+index) // Poetry does not read the settings of pip
	}
	defer os.RemoveAll(cache) // it would be in every machine of the function
	i.env = append(i.env, "VIRTUAL_ENV="+i.packages(), "POETRY_CACHE_DIR="+cache)
	return i.run(ctx, filepath.Join(tools, "bin", "poetry"), "install", "--only", "main", "--no-root",
		"--no-interaction", "--no-ansi")
}

// projectDependencies reads the dependencies of a pyproject.toml.
func projectDependencies(ctx context.Context, python, file string) ([]string, error) {
	const read = "import json, sys, tomllib\n" +
		"print(json.dumps(tomllib.load(open(sys.argv[1], 'rb')).get('project', {}).get('dependencies', [])))"
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, python, "-c", read, file)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var deps []string
	if err == nil {
		err = json.Unmarshal(out, &deps)
	}
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("pyproject.toml cannot be read: %w: %.500s", err, lines[len(lines)-1])
	}
	return deps, nil
}

// node installs packages with the manager whose lock file the bundle has.
func (i *installer) node(ctx context.Context) (string, error) {
	data, err := os.ReadFile(filepath.Join(i.Code, "package.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var p struct {
		Manager string `json:"packageManager"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return "", fmt.Errorf("package.json cannot be read: %w", err)
	}
	named, version, _ := strings.Cut(p.Manager, "@")
	version, _, _ = strings.Cut(version, "+") // what follows is a hash
	manager := named
	for _, lock := range [][2]string{
		{"package-lock.json", "npm"}, {"npm-shrinkwrap.json", "npm"}, {"pnpm-lock.yaml", "pnpm"}, {"yarn.lock", "yarn"},
		{"bun.lock", "bun"}, {"bun.lockb", "bun"},
	} {
		if i.exists(lock[0]) {
			manager = lock[1]
			break
		}
	}
	if named != manager {
		version = ""
	}
	locked := i.exists("package-lock.json") || i.exists("npm-shrinkwrap.json")
	switch manager {
	case "", "npm":
		if locked {
			return "npm", i.run(ctx, "npm", "ci", "--omit=dev")
		}
		return "npm", i.run(ctx, "npm", "install", "--omit=dev", "--no-package-lock")
	case "pnpm":
		argv := []string{"install", "--prod"}
		if i.exists("pnpm-lock.yaml") {
			argv = append(argv, "--frozen-lockfile")
		}
		return manager, i.run(ctx, append(i.tool(manager, version, versionPNPM), argv...)...)
	case "yarn":
		return manager, i.yarn(ctx, version)
	case "bun":
		argv := []string{"install", "--production"}
		if i.exists("bun.lock") || i.exists("bun.lockb") {
			argv = append(argv, "--frozen-lockfile")
		}
		return manager, i.run(ctx, append(i.tool(manager, version, versionBun), argv...)...)
	}
	return "", fmt.Errorf("packageManager %.50q in package.json is not known: use npm, pnpm, yarn or bun", p.Manager)
}

// tool returns the command of a manager: that of the template, unless package.json wants a certain version.
func (i *installer) tool(name, version, usual string) []string {
	if _, err := exec.LookPath(name); err == nil && version == "" {
		return []string{name}
	}
	if version == "" {
		version = usual
	}
	return []string{"npm", "exec", "--yes", "--package=" + name + "@" + version, "--", name}
}

// yarn installs with version 1, or with a later one if the lock file is of one.
func (i *installer) yarn(ctx context.Context, version string) error {
	data, err := os.ReadFile(filepath.Join(i.Code, "yarn.lock"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if bytes.Contains(data, []byte("\n__metadata:")) {
		if version == "" {
			version = "4.9.2"
		}
		i.env = append(i.env, "YARN_NODE_LINKER=node-modules", "YARN_ENABLE_TELEMETRY=0", "YARN_ENABLE_GLOBAL_CACHE=0")
		if at, ok := lookup(i.env, "NPM_CONFIG_REGISTRY"); ok {
			i.env = append(i.env, "YARN_NPM_REGISTRY_SERVER="+strings.TrimSuffix(at, "/"))
		}
		return i.run(ctx, "npm", "exec", "--yes", "--package=@yarnpkg/cli-dist@"+version, "--", "yarn", "install",
			"--immutable")
	}
	argv := []string{"install", "--production", "--non-interactive"}
	if data != nil {
		argv = append(argv, "--frozen-lockfile")
	}
	if at, ok := lookup(i.env, "NPM_CONFIG_REGISTRY"); ok {
		i.env = append(i.env, "YARN_REGISTRY="+at)
	}
	return i.run(ctx, append(i.tool("yarn", version, versionYarn), argv...)...)
}

func lookup(env []string, name string) (string, bool) {
	for _, pair := range env {
		if n, value, _ := strings.Cut(pair, "="); strings.EqualFold(n, name) {
			return value, true
		}
	}
	return "", false
}
