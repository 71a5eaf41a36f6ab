package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
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

// clientTimes is the number of measured commands of each client. clientWarm commands before them are not measured,
// because caches are cold then, including those of the client's JIT compiler.
const (
	clientTimes = 200
	clientWarm  = 20
)

// clientTarget is the target for a command through a published client, in milliseconds.
const clientTarget = 25

// npmLimit is the time limit for the installation of one client.
const npmLimit = 5 * time.Minute

// published is a published client library for Node.js.
type published struct {
	series, packet, version string
	script                  []byte
	environment             func(url, key string) []string
}

var publishedClients = []published{
	{"exec_true_e2b", "e2b", "2.51.0", e2bScript, func(url, key string) []string {
		return []string{
			"E2B_API_KEY=e2b_" + strings.TrimPrefix(key, "pds_"),
			"E2B_API_URL=" + url,
			"E2B_SANDBOX_URL=" + url,
		}
	}},
	{"exec_true_sdk", "@pandastack/sdk", "0.9.0", sdkScript, func(url, key string) []string {
		return []string{"PANDASTACK_API=" + url, "PANDASTACK_API_URL=" + url, "PANDASTACK_API_KEY=" + key}
	}},
}

// clients measures exec of true through published clients: one Node.js process for each, over HTTP on a persistent
// connection. npm installs them in the work directory.
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
	idle := httptest.NewServer(immediateAPI(sb.ID))
	defer idle.Close()
	var all error
	for _, p := range publishedClients {
		if err := r.both(ctx, p, sb.ID, idle.URL); err != nil {
			all = errors.Join(all, fmt.Errorf("%s %s: %w", p.packet, p.version, err))
		}
	}
	return all
}

// both measures one client against the node, and then against a server that replies immediately, which gives the time
// that the client itself takes.
func (r *run) both(ctx context.Context, p published, id api.SandboxID, idle string) error {
	dir := filepath.Join(r.Work, p.series)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	install, cancel := context.WithTimeout(ctx, npmLimit)
	defer cancel()
	err := command(install, "npm", "install", "--prefix", dir,
		"--no-audit", "--no-fund", "--ignore-scripts", p.packet+"@"+p.version)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "times.mjs"), p.script, 0o644); err != nil {
		return err
	}
	s := r.series(
		p.series,
		fmt.Sprintf("exec of true through %s %s, repeatedly in one sandbox", p.packet, p.version),
		&Target{P50: clientTarget},
	)
	sandbox := "BENCH_SANDBOX=" + string(id)
	if err := r.runScript(ctx, s, dir, append(p.environment(r.cl.URL(), r.cl.Key()), sandbox)); err != nil {
		return err
	}
	own := r.series(p.series+"_own", "reference: the same against a server that replies immediately", nil)
	if err := r.runScript(ctx, own, dir, append(p.environment(idle, r.cl.Key()), sandbox)); err != nil {
		return err
	}
	s.close()
	own.close()
	s.Note = fmt.Sprintf("%.1f ms of it in the client", own.P50)
	return nil
}

// runScript runs the client's script in dir and records how long each command took by the client's own clock.
func (r *run) runScript(ctx context.Context, s *Series, dir string, env []string) error {
	n := r.times(clientTimes)
	c := exec.CommandContext(ctx, "node", "times.mjs")
	c.Dir = dir
	c.Env = append(append(os.Environ(), env...), fmt.Sprintf("BENCH_TIMES=%d", n+clientWarm))
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(errs.String()))
	}
	return r.recordOutput(s, &out, n)
}

// recordOutput records the measurements that a script printed, except the first clientWarm.
func (r *run) recordOutput(s *Series, out *bytes.Buffer, n int) error {
	seen := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var one struct {
			MS    float64 `json:"ms"`
			Error string  `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return fmt.Errorf("the script printed %.80q, want one JSON object per line", lines.Text())
		}
		var err error
		if one.Error != "" {
			err = errors.New(one.Error)
		}
		if seen++; seen > clientWarm {
			r.add(s, time.Duration(one.MS*float64(time.Millisecond)), err)
		}
	}
	if seen != n+clientWarm {
		return fmt.Errorf("the script reported %d commands, want %d", seen, n+clientWarm)
	}
	return nil
}

// immediateAPI replies to the requests that the clients send for a command, as if it had succeeded immediately.
// Nothing runs. Write errors are ignored: they mean that the client has disconnected.
func immediateAPI(id api.SandboxID) http.Handler {
	mux := http.NewServeMux()
	about := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(
			w,
			`{"id":%q,"status":"running","sandboxID":%q,"templateID":"base","clientID":"bench","envdVersion":"0.6.4"}`,
			id,
			id,
		)
	}
	mux.HandleFunc("GET /v1/sandboxes/{id}", about)
	mux.HandleFunc("POST /v2/sandboxes/{id}/connect", about)
	mux.HandleFunc("POST /v1/sandboxes/{id}/exec", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"stdout":"","stderr":"","exit_code":0,"duration_ms":0}`)
	})
	mux.HandleFunc("POST /process.Process/Start", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/connect+json")
		for _, one := range []struct {
			flags   byte // 2: the end of the stream
			message string
		}{
			{0, `{"event":{"start":{"pid":1}}}`},
			{0, `{"event":{"end":{"exited":true,"status":"exit status 0"}}}`},
			{2, `{}`},
		} {
			head := binary.BigEndian.AppendUint32([]byte{one.flags}, uint32(len(one.message)))
			_, _ = w.Write(append(head, one.message...))
			_ = http.NewResponseController(w).Flush()
		}
	})
	return mux
}
