//go:build e2e

// Package e2e tests the real program: it runs a node as a child process and the command line against it.
//
// The tests also check that nothing is left over on the host. They need root, and the data directory that `make
// prepare` creates.
package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// prefix returns the network prefix of the nodes of a data directory. It keeps several runs of these tests on one host
// apart.
func prefix(dir string) string {
	return fmt.Sprintf("e%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff)
}

// limit is the time limit of every wait for a node. It is long because the host may be busy.
const limit = 2 * time.Minute

// repository returns the root directory of the repository.
func repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// program returns the path of the built program.
func program(t *testing.T) string {
	t.Helper()
	p := filepath.Join(repository(t), "bin", "pandastack")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v; run make build", err)
	}
	return p
}

// dataDir returns the prepared data directory, which also has the templates that earlier runs have baked.
func dataDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: a node needs root")
	}
	dir := os.Getenv("PANDASTACK_TEST_DATA")
	if dir == "" {
		dir = filepath.Join(repository(t), ".cache", "data")
	}
	if _, err := os.Stat(filepath.Join(dir, "kernel")); err != nil {
		t.Fatalf("%v; run make prepare", err)
	}
	return dir
}

// node is a running `pandastack up`.
type node struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
	url string
	key string
	log *bytes.Buffer

	done chan struct{} // closed when the process has exited
	err  error         // error of the process; valid after done is closed
}

// environment returns the environment of every program that the tests start. It disables warm monitors, so that tests
// can count the running ones; TestTour and TestPublishedClients enable them.
func environment(dir string) []string {
	warm := cmp.Or(os.Getenv("PANDASTACK_TEST_WARM_MONITORS"), "0")
	return append(
		os.Environ(),
		"PANDASTACK_SANDBOX_WARM_MONITORS="+warm,
		"PANDASTACK_DATA_DIR="+dir,
		"PANDASTACK_NETWORK_PREFIX="+prefix(dir),
		"PANDASTACK_LISTEN=127.0.0.1:0",
		"PANDASTACK_API=",
		"PANDASTACK_API_URL=",
		"PANDASTACK_API_KEY=",
		"PANDASTACK_TOKEN=",
		"HOME="+dir,
	)
}

// launch starts `pandastack up` and waits until the node is ready or has exited. ended reports whether it has exited.
func launch(t *testing.T, dir string, args ...string) (n *node, ended bool) {
	t.Helper()
	n = &node{t: t, dir: dir, log: &bytes.Buffer{}, done: make(chan struct{})}
	n.cmd = exec.Command(program(t), append([]string{"up", "--json"}, args...)...)
	n.cmd.Env = environment(dir)
	n.cmd.Stderr = n.log
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		var first struct {
			URL string `json:"api_url"`
			Key string `json:"api_key"`
		}
		if json.NewDecoder(out).Decode(&first) == nil {
			n.url, n.key = first.URL, first.Key
			close(ready)
		}
		_, _ = io.Copy(io.Discard, out) // the node prints nothing more; reading keeps it from blocking
		n.err = n.cmd.Wait()
		close(n.done)
	}()
	t.Cleanup(func() {
		select {
		case <-n.done:
		default:
			n.stop()
		}
		if t.Failed() {
			t.Logf("log of the node:\n%s", tail(n.log.String()))
		}
	})
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ready:
		return n, false
	case <-n.done:
		return n, true
	case <-timer.C:
		_ = n.cmd.Process.Kill()
		<-n.done
		t.Fatalf("the node was not ready in %v:\n%s", limit, n.log)
	}
	return nil, true
}

// tail returns the last 8000 bytes of a text.
func tail(text string) string {
	if len(text) > 8000 {
		return "..." + text[len(text)-8000:]
	}
	return text
}

// start launches a node that must become ready.
func start(t *testing.T, dir string, args ...string) *node {
	t.Helper()
	n, ended := launch(t, dir, args...)
	if ended {
		t.Fatalf("the node exited instead of becoming ready (%v):\n%s", n.err, n.log)
	}
	return n
}

// stop stops the node cleanly and waits for it to exit.
func (n *node) stop() {
	n.t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Errorf("stop: %v", err)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-n.done:
		if n.err != nil {
			n.t.Errorf("the node exited with %v, want success:\n%s", n.err, tail(n.log.String()))
		}
	case <-timer.C:
		_ = n.cmd.Process.Kill()
		<-n.done
		n.t.Errorf("the node did not stop in %v:\n%s", limit, tail(n.log.String()))
	}
}

// kill kills the node with SIGKILL.
func (n *node) kill() {
	n.t.Helper()
	if err := n.cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	<-n.done
}

// result is the exit code and output of a command.
type result struct {
	code           int
	stdout, stderr string
}

// cli runs the command line against the node.
func (n *node) cli(args ...string) result {
	n.t.Helper()
	return run(n.t, n.dir, nil, append([]string{"--api", n.url}, args...)...)
}

// run runs the program with arguments and waits for it to exit.
func run(t *testing.T, dir string, stdin io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(
		context.WithoutCancel(t.Context()),
		10*time.Minute,
	) // cleanups run after t.Context has ended
	defer cancel()
	c := exec.CommandContext(ctx, program(t), args...)
	c.Env = environment(dir)
	c.Stdin = stdin
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return result{exit.ExitCode(), out.String(), errs.String()}
	}
	if err != nil {
		t.Fatalf("pandastack %s: %v", strings.Join(args, " "), err)
	}
	return result{0, out.String(), errs.String()}
}

// json runs a command that must succeed and decodes its JSON output into v, which may be nil.
func (n *node) json(v any, args ...string) {
	n.t.Helper()
	r := n.cli(append([]string{"--json"}, args...)...)
	if r.code != 0 {
		n.t.Fatalf("pandastack %s: exit %d: %s", strings.Join(args, " "), r.code, r.stderr)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(r.stdout), v); err != nil {
		n.t.Fatalf("pandastack %s printed %q: %v", strings.Join(args, " "), r.stdout, err)
	}
}

type sandbox struct {
	ID         string `json:"id"`
	Status     string `json:"status"`
	BootMode   string `json:"boot_mode"`
	Persistent bool   `json:"persistent"`
	Generation uint64 `json:"generation"`
}

// bake bakes a template if necessary. It first deletes what failed tests have left.
func (n *node) bake(template string) {
	n.t.Helper()
	n.clean()
	n.json(nil, "template", "bake", template)
}

// clean deletes every sandbox and snapshot.
func (n *node) clean() {
	n.t.Helper()
	var list []sandbox
	if n.json(&list, "sandbox", "list"); len(list) > 0 {
		n.json(nil, "sandbox", "delete", "--all")
	}
	n.json(&list, "snapshot", "list")
	for _, s := range list {
		n.json(nil, "snapshot", "delete", s.ID)
	}
}

// create creates a sandbox of template mini.
func (n *node) create(args ...string) sandbox {
	n.t.Helper()
	var s sandbox
	n.json(&s, append([]string{"sandbox", "create", "--template", "mini"}, args...)...)
	return s
}

// get returns a sandbox.
func (n *node) get(id string) sandbox {
	n.t.Helper()
	var s sandbox
	n.json(&s, "sandbox", "get", id)
	return s
}

// sh runs a shell command in a sandbox, which must exit with code 0, and returns its trimmed output.
func (n *node) sh(id, line string) string {
	n.t.Helper()
	r := n.cli("sandbox", "exec", id, line)
	if r.code != 0 {
		n.t.Fatalf("%q in %s: exit %d\n%s%s", line, id, r.code, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// accessKey returns the API key that the node has stored for the command line.
func (n *node) accessKey() string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.dir, "client.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	var access struct {
		Key string `json:"api_key"`
	}
	if err := json.Unmarshal(data, &access); err != nil {
		n.t.Fatal(err)
	}
	return access.Key
}

// send sends an HTTP request and returns status and body.
func (n *node) send(method, path, body string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.url+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.accessKey())
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		n.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var err error
	for time.Now().Before(end) {
		if err = ok(); err == nil {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s: not within %v: %v", what, limit, err)
}

// busyPort listens on a port of the loopback interface until the test ends, and returns its address.
func busyPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return fmt.Sprint(l.Addr())
}
