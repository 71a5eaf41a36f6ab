//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/test/compat"
	"github.com/pandastack/pandastack/test/nodelab"
)

// clientLimit is how long a client's installation, or its whole scenario, may take on a busy machine.
const clientLimit = 8 * time.Minute

// published is a published client and the scenario that drives it.
type published struct {
	client, version string
	more            []string // further packages that the client needs, as npm or pip name them
	script          string   // path of the scenario in the repository
	part            string   // of the client that the scenario drives, if another scenario drives the rest
	program         string   // interpreter of the script; empty for node
	lane            int      // clients of one lane run one after the other, concurrently with those of the other lane
	plain           bool     // use plain HTTP and a key of /v1; otherwise TLS and E2B's host names
	// base is the environment that makes the scenario use template base instead of the client's own template, which
	// takes minutes to bake. The scenario is shortened then, so its results are only recorded by "make test-slow",
	// which uses the client's own template. It is nil for a scenario that always uses base.
	base []string
	// packages makes the complete scenario run on template base, with the Python packages of the client's own template
	// added.
	packages bool
}

var clients = []published{
	{client: "e2b", version: "2.51.0", script: "test/clients/e2b.mjs"},
	{client: "e2b", version: "2.6.4", script: "test/clients/e2b.mjs"},
	{client: "@e2b/cli", version: "2.19.0", script: "test/clients/cli.mjs"},
	{client: "@computesdk/e2b", version: "1.7.52", script: "test/clients/computesdk.mjs"},
	{
		client:  "@openai/agents-extensions",
		version: "0.18.0",
		more:    []string{"@openai/agents@0.18.0", "e2b@2.51.0", "zod@4.1.12"},
		script:  "test/clients/agents.mjs",
	},
	{lane: 1, client: "@pandastack/sdk", version: "0.9.0", script: "test/sdk/sdk.mjs", plain: true},
	{
		lane:    1,
		client:  "pandastack",
		version: "0.8.1",
		script:  "test/sdk/sdk.py",
		program: "python3",
		plain:   true,
		base:    []string{"SDK_TEMPLATE=base"},
	},
	{client: "e2b", version: "2.51.0", script: "test/clients/e2b_client.py", program: "python3"},
	{
		lane:    1,
		client:  "e2b-code-interpreter",
		version: "2.8.0",
		more:    []string{"e2b==2.51.0"},
		script:  "test/clients/interpreter_client.py",
		program: "python3",
	},
	{
		lane:     1,
		client:   "@e2b/code-interpreter",
		version:  "2.8.0",
		script:   "test/clients/interpreter.mjs",
		packages: true,
	},
}

// registry returns the name of the package registry of the client.
func (p published) registry() string {
	if p.program == "python3" {
		return "PyPI"
	}
	return "npm"
}

// dir returns the directory in which the client is installed.
func (p published) dir(t *testing.T) string {
	name := strings.NewReplacer("@", "", "/", "-").
		Replace(p.client) +
		"-" + p.version + "-" + strings.ToLower(
		p.registry(),
	)
	return filepath.Join(nodelab.Repository(t), ".cache", "clients", name)
}

// TestPublishedClients runs unmodified published clients against a real node. Every operation of a scenario is a
// subtest. docs/compatibility.md is generated from the results.
func TestPublishedClients(t *testing.T) {
	for _, name := range []string{"npm", "node", "python3", "script"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("probe %s: it is not installed on this host", name)
		}
	}
	t.Setenv("PANDASTACK_TEST_WARM_MONITORS", "2")
	installed := installAll(t)
	port := freePort(t)
	public := net.JoinHostPort("panda.test", port) // the host name that names.cjs and tunnel resolve
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir, "--tls-listen", net.JoinHostPort("127.0.0.1", port), "--public-url", "https://"+public)
	n.Bake("base")
	n.Bake("mini") // base image of the clients' builds
	for _, name := range []string{"e2e-builder", "sdk-built", "sdk-failing", "sdk-python"} {
		n.CLI("template", "delete", name) // may be left over from a failed test
		defer n.CLI("template", "delete", name)
	}
	w := &clientSetup{Node: n, public: public, tunnel: tunnel(t)}
	if w.slow = os.Getenv("PANDASTACK_TEST_SLOW") != ""; w.slow {
		n.Bake("code-interpreter")
	}
	defer n.Clean() // not every client deletes what it made
	if !w.slow {
		w.packages = packages(t, n)
	}
	var lanes sync.WaitGroup
	defer lanes.Wait()
	for lane := range 2 {
		lanes.Go(func() {
			for i, p := range clients {
				if p.lane != lane {
					continue
				}
				t.Run(p.client+"-"+p.version+"-"+p.registry(), func(t *testing.T) {
					if err := installed(i); err != nil {
						t.Fatal(err)
					}
					p.drive(t, w)
				})
			}
		})
	}
}

// clientSetup is the node that the clients are run against, with what they share.
type clientSetup struct {
	*nodelab.Node
	public   string                 // public host name and port of the node
	tunnel   string                 // address of a proxy that resolves the node's host names
	packages func() (string, error) // waits for the tar of packages that template base lacks
	slow     bool                   // template code-interpreter is baked
	recordMu sync.Mutex             // held while a record is saved
}

// installAll installs the clients in the background. The returned function waits, and returns the error of client i.
func installAll(t *testing.T) func(i int) error {
	errs := make([]error, len(clients))
	dirs := make([]string, len(clients))
	for i, p := range clients {
		dirs[i] = p.dir(t)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for i, p := range clients {
			errs[i] = p.install(t.Context(), dirs[i])
		}
	})
	t.Cleanup(done.Wait)
	return func(i int) error { done.Wait(); return errs[i] }
}

// install installs a client in dir unless it is installed there already.
func (p published) install(ctx context.Context, dir string) error {
	mark := filepath.Join(dir, "installed")
	if _, err := os.Stat(mark); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	cmd := exec.CommandContext(
		ctx,
		"npm",
		append(
			[]string{
				"install",
				"--prefix",
				dir,
				"--no-audit",
				"--no-fund",
				"--ignore-scripts",
				p.client + "@" + p.version,
			},
			p.more...)...)
	if p.registry() == "PyPI" {
		cmd = exec.CommandContext(
			ctx,
			"python3",
			append(
				[]string{
					"-m",
					"pip",
					"install",
					"--quiet",
					"--target",
					filepath.Join(dir, "site"),
					p.client + "==" + p.version,
				},
				p.more...)...)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install %s %s: %w\n%s", p.client, p.version, err, out)
	}
	return os.WriteFile(mark, nil, 0o644)
}

// freePort returns a free port of the loopback interface. It is below the kernel's ephemeral port range, so that no
// other program gets it before it is used.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(10_000))
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		return port
	}
	t.Fatal("no free port found in 100 attempts")
	return ""
}

// place copies the scripts to the directory of the installed client, where their imports find it.
func (p published) place(t *testing.T, dir string) {
	t.Helper()
	for _, pattern := range []string{
		"test/clients/*.mjs", "test/clients/*.cjs", "test/clients/*.py", "test/sdk/*.mjs", "test/sdk/*.py",
	} {
		files, err := filepath.Glob(filepath.Join(nodelab.Repository(t), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, filepath.Base(f)), data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// environment returns the environment variables that a user of the client would set.
func (p published) environment(t *testing.T, w *clientSetup) []string {
	key := w.AccessKey()
	site := []string{
		"PYTHONPATH=" + filepath.Join(p.dir(t), "site"),
		"PYTHONDONTWRITEBYTECODE=1",
		"HOME=" + t.TempDir(),
	}
	if p.plain {
		return append(
			site,
			"PANDASTACK_API="+w.URL,
			"PANDASTACK_API_URL="+w.URL,
			"PANDASTACK_API_KEY="+key,
			"PANDASTACK_TOKEN=",
			"SDK_DIR=/tmp/sdk",
			"SDK_CLI=1",
			"SDK_BUILD=mini",
		)
	}
	authority := filepath.Join(w.Dir, "tls", "ca.pem")
	env := append(site, "E2B_API_KEY=e2b_"+strings.TrimPrefix(key, "pds_"), "E2B_DOMAIN="+w.public)
	if p.registry() == "PyPI" {
		return append(env, "SSL_CERT_FILE="+authority, "HTTPS_PROXY=http://"+w.tunnel, "NO_PROXY=")
	}
	return append(env, "NODE_EXTRA_CA_CERTS="+authority, "NODE_OPTIONS=--require="+filepath.Join(p.dir(t), "names.cjs"))
}

// drive runs the scenario and records its results.
func (p published) drive(t *testing.T, w *clientSetup) {
	dir := p.dir(t)
	p.place(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), clientLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, cmp.Or(p.program, "node"), filepath.Base(p.script))
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), p.environment(t, w)...)
	if !w.slow {
		cmd.Env = append(cmd.Env, p.base...)
	}
	if p.packages && !w.slow {
		tar, err := w.packages()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Env = append(cmd.Env, "E2B_TESTS_TEMPLATE=base", "E2B_TESTS_PACKAGES="+tar)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, t.Output()
	err := cmd.Run()
	r := compat.Record{Client: p.client, Registry: p.registry(), Version: p.version, Part: p.part, Test: p.script}
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var result struct {
			Operation, Name, Error string
			OK                     bool
			MS                     int
		}
		if json.Unmarshal(lines.Bytes(), &result) != nil || result.Operation+result.Name == "" {
			t.Logf("printed: %s", lines.Text())
			continue
		}
		name := result.Operation + result.Name
		r.Operations = append(r.Operations, compat.Operation{Name: name, OK: result.OK})
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Logf("%d ms", result.MS)
			if !result.OK {
				t.Error(result.Error)
			}
		})
	}
	if err != nil || len(r.Operations) == 0 {
		t.Errorf("scenario exited with %v after %d operations, want success and at least one", err, len(r.Operations))
	}
	if p.base != nil && !w.slow {
		return // the scenario was shortened: its results are not recorded
	}
	w.recordMu.Lock()
	defer w.recordMu.Unlock()
	if err := compat.Save(nodelab.Repository(t), r); err != nil {
		t.Error(err)
	}
}
