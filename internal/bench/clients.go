package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
)

//go:embed e2b.mjs
var e2bScript []byte

//go:embed sdk.mjs
var sdkScript []byte

// clientTimes is how often each client runs its command, after clientWarm that are not measured: the first
// ones find caches cold, those of the client's own compiler among them.
const (
	clientTimes = 200
	clientWarm  = 20
)

// clientTarget is the promise for a command through a published client, in milliseconds.
const clientTarget = 25

// npmLimit bounds the installation of one client.
const npmLimit = 5 * time.Minute

// published is a client that nobody here wrote, for Node.js.
type published struct {
	series, packet, version string
	script                  []byte
	environment             func(url, key string) []string
}

var publishedClients = []published{
	{"exec_true_e2b", "e2b", "2.51.0", e2bScript, func(url, key string) []string {
		return []string{"E2B_API_KEY=e2b_" + strings.TrimPrefix(key, "pds_"), "E2B_API_URL=" + url, "E2B_SANDBOX_URL=" + url}
	}},
	{"exec_true_sdk", "@pandastack/sdk", "0.9.0", sdkScript, func(url, key string) []string {
		return []string{"PANDASTACK_API=" + url, "PANDASTACK_API_URL=" + url, "PANDASTACK_API_KEY=" + key}
	}},
}

// clients measures exec of true through published clients: a process of Node.js each, over HTTP, which keeps
// its connection. They are installed by npm in the work directory.
func (r *run) clients(ctx context.Context) error {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is not installed", program)
		}
	}
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	var all error
	for _, p := range publishedClients {
		if err := r.through(ctx, p, sb.ID); err != nil {
			all = errors.Join(all, fmt.Errorf("%s %s: %w", p.packet, p.version, err))
		}
	}
	return all
}

// through runs one client's commands and records how long each took by the client's own clock.
func (r *run) through(ctx context.Context, p published, id api.SandboxID) error {
	dir := filepath.Join(r.Work, p.series)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	install, cancel := context.WithTimeout(ctx, npmLimit)
	defer cancel()
	if err := command(install, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts", p.packet+"@"+p.version); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "times.mjs"), p.script, 0o644); err != nil {
		return err
	}
	n := r.times(clientTimes)
	s := r.series(p.series, fmt.Sprintf("exec of true through %s %s, again and again in one sandbox", p.packet, p.version), &Target{P50: clientTarget})
	c := exec.CommandContext(ctx, "node", "times.mjs")
	c.Dir = dir
	c.Env = append(os.Environ(), p.environment(r.cl.URL(), r.cl.Key())...)
	c.Env = append(c.Env, "BENCH_SANDBOX="+string(id), fmt.Sprintf("BENCH_TIMES=%d", n+clientWarm))
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return r.told(s, &out, n)
}

// told records what a script printed, less the first clientWarm.
func (r *run) told(s *Series, out *bytes.Buffer, n int) error {
	told := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var one struct {
			MS    float64 `json:"ms"`
			Error string  `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return fmt.Errorf("the script printed %.80q", lines.Text())
		}
		var err error
		if one.Error != "" {
			err = errors.New(one.Error)
		}
		if told++; told > clientWarm {
			r.add(s, time.Duration(one.MS*float64(time.Millisecond)), err)
		}
	}
	if told != n+clientWarm {
		return fmt.Errorf("the script told of %d commands of %d", told, n+clientWarm)
	}
	return nil
}
