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
)

// clientLimit is how long a client's installation, or its whole scenario, may take on a busy machine.
const clientLimit = 8 * time.Minute

// published is a client that nobody here wrote, and what drives it.
type published struct {
	client, version string
	more            []string // packages that it needs beside itself, as its registry's client names them
	script          string   // below the repository
	program         string   // that runs the script
	lane            int      // clients of one lane run one after the other, beside those of the other lane
	plain           bool     // over HTTP with a key of /v1, else over TLS by E2B's names
	// base lets the scenario do with template base; nil: it does anyhow. Else the client's own template takes minutes
	// to bake: make test-slow drives all of it with that, and only what it does then is told to users.
	base []string
	// packages: its template takes minutes to bake too, but on base it does all of it with the packages of Python that
	// the template has.
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

func (p published) registry() string {
	if p.program == "python3" {
		return "PyPI"
	}
	return "npm"
}

// dir is where a client is installed.
func (p published) dir(t *testing.T) string {
	name := strings.NewReplacer("@", "", "/", "-").
		Replace(p.client) +
		"-" + p.version + "-" + strings.ToLower(
		p.registry(),
	)
	return filepath.Join(repository(t), ".cache", "clients", name)
}

// TestPublishedClients drives a real node with published clients, unmodified. Every operation of a scenario is a
// test of its own, and the page for users is made of how they went.
func TestPublishedClients(t *testing.T) {
	for _, name := range []string{"npm", "node", "python3", "script"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("probe %s: it is not installed on this machine", name)
		}
	}
	t.Setenv("PANDASTACK_TEST_WARM_MONITORS", "2")
	installed := installAll(t)
	port := freePort(t)
	public := net.JoinHostPort("panda.test", port) // as names.cjs and the tunnel have it
	dir := dataDir(t)
	n := start(t, dir, "--tls-listen", net.JoinHostPort("127.0.0.1", port), "--public-url", "https://"+public)
	n.bake("base")
	n.bake("mini") // what the clients build on
	for _, name := range []string{"e2e-builder", "sdk-built", "sdk-failing", "sdk-python"} {
		n.cli("template", "delete", name) // a test that failed may have left it
		defer n.cli("template", "delete", name)
	}
	w := &world{node: n, public: public, tunnel: tunnel(t)}
	if w.slow = os.Getenv("PANDASTACK_TEST_SLOW") != ""; w.slow {
		n.bake("code-interpreter")
	}
	defer n.clean() // not every client deletes what it made
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

// world is what the clients are driven against.
type world struct {
	*node
	public   string                 // the node's name and port, as clients have it
	tunnel   string                 // address of a proxy that knows the node's names
	packages func() (string, error) // waits for the packages that template base lacks
	slow     bool                   // template code-interpreter is there
	keep     sync.Mutex             // held while a record is kept
}

// installAll installs the clients, while other things are done; the answer waits for one of them.
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

// install puts a client into dir, once.
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

// freePort finds a port of the loopback interface that nothing listens on, below those that the kernel gives to
// whoever asks for any: nobody takes it before it is used.
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
	t.Fatal("no free port was found")
	return ""
}

// place copies the scripts beside the installed client, where they find it.
func (p published) place(t *testing.T, dir string) {
	t.Helper()
	for _, pattern := range []string{"test/clients/*.mjs", "test/clients/*.cjs", "test/clients/*.py", "test/sdk/*.mjs", "test/sdk/*.py"} {
		files, err := filepath.Glob(filepath.Join(repository(t), pattern))
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

// environment is what a user of the client would set.
func (p published) environment(t *testing.T, w *world) []string {
	key := w.accessKey()
	site := []string{
		"PYTHONPATH=" + filepath.Join(p.dir(t), "site"),
		"PYTHONDONTWRITEBYTECODE=1",
		"HOME=" + t.TempDir(),
	}
	if p.plain {
		return append(
			site,
			"PANDASTACK_API="+w.url,
			"PANDASTACK_API_URL="+w.url,
			"PANDASTACK_API_KEY="+key,
			"PANDASTACK_TOKEN=",
			"SDK_DIR=/tmp/sdk",
			"SDK_CLI=1",
			"SDK_BUILD=mini",
		)
	}
	authority := filepath.Join(w.dir, "tls", "ca.pem")
	env := append(site, "E2B_API_KEY=e2b_"+strings.TrimPrefix(key, "pds_"), "E2B_DOMAIN="+w.public)
	if p.registry() == "PyPI" {
		return append(env, "SSL_CERT_FILE="+authority, "HTTPS_PROXY=http://"+w.tunnel, "NO_PROXY=")
	}
	return append(env, "NODE_EXTRA_CA_CERTS="+authority, "NODE_OPTIONS=--require="+filepath.Join(p.dir(t), "names.cjs"))
}

// drive runs the scenario and records how it went.
func (p published) drive(t *testing.T, w *world) {
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
	r := compat.Record{Client: p.client, Registry: p.registry(), Version: p.version, Test: p.script}
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var told struct {
			Operation, Name, Error string
			OK                     bool
			MS                     int
		}
		if json.Unmarshal(lines.Bytes(), &told) != nil || told.Operation+told.Name == "" {
			t.Logf("printed: %s", lines.Text())
			continue
		}
		name := told.Operation + told.Name
		r.Operations = append(r.Operations, compat.Operation{Name: name, OK: told.OK})
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Logf("%d ms", told.MS)
			if !told.OK {
				t.Error(told.Error)
			}
		})
	}
	if err != nil || len(r.Operations) == 0 {
		t.Errorf("the scenario ended with %v after %d operations", err, len(r.Operations))
	}
	if p.base != nil && !w.slow {
		return // a part of it
	}
	w.keep.Lock()
	defer w.keep.Unlock()
	if err := compat.Save(repository(t), r); err != nil {
		t.Error(err)
	}
}
