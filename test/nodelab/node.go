// Package nodelab runs the real program in tests: a node as a child process, and the command line against it. It also
// finds what a node has left over on the host.
//
// A node needs root, and the data directory that "make prepare" creates.
package nodelab

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
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Prefix returns the network prefix of the nodes of a data directory. It keeps several runs of these tests on one host
// apart.
func Prefix(dir string) string {
	return fmt.Sprintf("e%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff)
}

// Limit is the time limit of every wait for a node. It is long because the host may be busy.
const Limit = 2 * time.Minute

// Repository returns the root directory of the repository.
func Repository(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// Program returns the path of the built program.
func Program(t *testing.T) string {
	t.Helper()
	p := filepath.Join(Repository(t), "bin", "pandastack")
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v; run make build", err)
	}
	return p
}

// uses are the data directories that this program has locked, which it does until it exits.
var uses struct {
	sync.Mutex
	locks map[string]*os.File
}

// DataDir returns the prepared data directory, with the templates that earlier runs have baked. It waits until no other
// test program uses the directory: packages are tested at the same time, and a directory has one node.
func DataDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("probe root: a node needs root")
	}
	dir := os.Getenv("PANDASTACK_TEST_DATA")
	if dir == "" {
		dir = filepath.Join(Repository(t), ".cache", "data")
	}
	if _, err := os.Stat(filepath.Join(dir, "kernel")); err != nil {
		t.Fatalf("%v; run make prepare", err)
	}
	uses.Lock()
	defer uses.Unlock()
	if uses.locks[dir] != nil {
		return dir
	}
	lock, err := os.Create(filepath.Join(dir, "test-node.lock"))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", lock.Name(), errors.Join(err, lock.Close()))
	}
	if uses.locks == nil {
		uses.locks = map[string]*os.File{}
	}
	uses.locks[dir] = lock
	return dir
}

// Node is a running `pandastack up`.
type Node struct {
	t   *testing.T
	Dir string
	Cmd *exec.Cmd
	URL string
	key string
	Log *bytes.Buffer

	done chan struct{} // closed when the process has exited
	err  error         // error of the process; valid after done is closed
}

// Environment returns the environment of every program that the tests start. It disables warm monitors, so that tests
// can count the running ones; TestTour and TestPublishedClients enable them.
func Environment(dir string) []string {
	warm := cmp.Or(os.Getenv("PANDASTACK_TEST_WARM_MONITORS"), "0")
	return append(
		os.Environ(),
		"PANDASTACK_SANDBOX_WARM_MONITORS="+warm,
		"PANDASTACK_TEMPLATES_REBAKE=false", // templates of other builds would be baked while tests count monitors
		"PANDASTACK_DATA_DIR="+dir,
		"PANDASTACK_NETWORK_PREFIX="+Prefix(dir),
		"PANDASTACK_LISTEN=127.0.0.1:0",
		"PANDASTACK_DATABASES_LISTEN=127.0.0.1:0",
		"PANDASTACK_API=",
		"PANDASTACK_API_URL=",
		"PANDASTACK_API_KEY=",
		"PANDASTACK_TOKEN=",
		"HOME="+dir,
	)
}

// Launch starts `pandastack up` and waits until the node is ready or has exited. ended reports whether it has exited.
func Launch(t *testing.T, dir string, args ...string) (n *Node, ended bool) {
	t.Helper()
	n = &Node{t: t, Dir: dir, Log: &bytes.Buffer{}, done: make(chan struct{})}
	n.Cmd = exec.Command(Program(t), append([]string{"up", "--json"}, args...)...)
	n.Cmd.Env = Environment(dir)
	n.Cmd.Stderr = n.Log
	out, err := n.Cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		var first struct {
			URL string `json:"api_url"`
			Key string `json:"api_key"`
		}
		if json.NewDecoder(out).Decode(&first) == nil {
			n.URL, n.key = first.URL, first.Key
			close(ready)
		}
		_, _ = io.Copy(io.Discard, out) // the node prints nothing more; reading keeps it from blocking
		n.err = n.Cmd.Wait()
		close(n.done)
	}()
	t.Cleanup(func() {
		select {
		case <-n.done:
		default:
			n.Stop()
		}
		if t.Failed() {
			t.Logf("log of the node:\n%s", tail(n.Log.String()))
		}
	})
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case <-ready:
		return n, false
	case <-n.done:
		return n, true
	case <-timer.C:
		_ = n.Cmd.Process.Kill()
		<-n.done
		t.Fatalf("the node was not ready in %v:\n%s", Limit, n.Log)
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

// Start launches a node that must become ready.
func Start(t *testing.T, dir string, args ...string) *Node {
	t.Helper()
	n, ended := Launch(t, dir, args...)
	if ended {
		t.Fatalf("the node exited instead of becoming ready (%v):\n%s", n.err, n.Log)
	}
	return n
}

// Stop stops the node cleanly and waits for it to exit. With lifecycle.keep_running it leaves machines running.
func (n *Node) Stop() {
	n.t.Helper()
	n.stop(syscall.SIGTERM)
}

// Interrupt stops the node and its machines, and waits for it to exit.
func (n *Node) Interrupt() {
	n.t.Helper()
	n.stop(syscall.SIGINT)
}

func (n *Node) stop(sig syscall.Signal) {
	n.t.Helper()
	if err := n.Cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Errorf("stop: %v", err)
	}
	timer := time.NewTimer(Limit)
	defer timer.Stop()
	select {
	case <-n.done:
		if n.err != nil {
			n.t.Errorf("the node exited with %v, want success:\n%s", n.err, tail(n.Log.String()))
		}
	case <-timer.C:
		_ = n.Cmd.Process.Kill()
		<-n.done
		n.t.Errorf("the node did not stop in %v:\n%s", Limit, tail(n.Log.String()))
	}
}

// Kill kills the node with SIGKILL.
func (n *Node) Kill() {
	n.t.Helper()
	if err := n.Cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	<-n.done
}

// Result is the exit code and output of a command.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// CLI runs the command line against the node.
func (n *Node) CLI(args ...string) Result {
	n.t.Helper()
	return Run(n.t, n.Dir, nil, append([]string{"--api", n.URL}, args...)...)
}

// Run runs the program with arguments and waits for it to exit.
func Run(t *testing.T, dir string, stdin io.Reader, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(
		context.WithoutCancel(t.Context()),
		10*time.Minute,
	) // cleanups run after t.Context has ended
	defer cancel()
	c := exec.CommandContext(ctx, Program(t), args...)
	c.Env = Environment(dir)
	c.Stdin = stdin
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return Result{exit.ExitCode(), out.String(), errs.String()}
	}
	if err != nil {
		t.Fatalf("pandastack %s: %v", strings.Join(args, " "), err)
	}
	return Result{0, out.String(), errs.String()}
}

// OK runs a command that must succeed, and returns its output.
func (n *Node) OK(args ...string) string {
	n.t.Helper()
	r := n.CLI(args...)
	if r.Code != 0 {
		n.t.Fatalf("pandastack %s: exit %d: %s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return r.Stdout
}

// JSON runs a command that must succeed and decodes its JSON output into v, which may be nil.
func (n *Node) JSON(v any, args ...string) {
	n.t.Helper()
	r := n.CLI(append([]string{"--json"}, args...)...)
	if r.Code != 0 {
		n.t.Fatalf("pandastack %s: exit %d: %s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(r.Stdout), v); err != nil {
		n.t.Fatalf("pandastack %s printed %q: %v", strings.Join(args, " "), r.Stdout, err)
	}
}

// Sandbox is what tests read of a sandbox.
type Sandbox struct {
	ID         string `json:"id"`
	Status     string `json:"status"`
	BootMode   string `json:"boot_mode"`
	Persistent bool   `json:"persistent"`
	Generation uint64 `json:"generation"`
}

// Bake bakes a template if necessary. It first deletes what failed tests have left.
func (n *Node) Bake(template string) {
	n.t.Helper()
	n.Clean()
	n.JSON(nil, "template", "bake", template)
}

// Clean deletes every sandbox, snapshot and volume.
func (n *Node) Clean() {
	n.t.Helper()
	var list []Sandbox
	if n.JSON(&list, "sandbox", "list"); len(list) > 0 {
		n.JSON(nil, "sandbox", "delete", "--all")
	}
	n.JSON(&list, "snapshot", "list")
	for _, s := range list {
		n.JSON(nil, "snapshot", "delete", s.ID)
	}
	n.JSON(&list, "volume", "list")
	for _, v := range list {
		n.JSON(nil, "volume", "delete", v.ID, "--snapshots")
	}
}

// Create creates a sandbox of template mini.
func (n *Node) Create(args ...string) Sandbox {
	n.t.Helper()
	var s Sandbox
	n.JSON(&s, append([]string{"sandbox", "create", "--template", "mini"}, args...)...)
	return s
}

// Get returns a sandbox.
func (n *Node) Get(id string) Sandbox {
	n.t.Helper()
	var s Sandbox
	n.JSON(&s, "sandbox", "get", id)
	return s
}

// Sh runs a shell command in a sandbox, which must exit with code 0, and returns its trimmed output.
func (n *Node) Sh(id, line string) string {
	n.t.Helper()
	r := n.CLI("sandbox", "exec", id, line)
	if r.Code != 0 {
		n.t.Fatalf("%q in %s: exit %d\n%s%s", line, id, r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// AccessKey returns the API key that the node has stored for the command line.
func (n *Node) AccessKey() string {
	n.t.Helper()
	data, err := os.ReadFile(filepath.Join(n.Dir, "client.json"))
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

// Send sends an HTTP request and returns status and body.
func (n *Node) Send(method, path, body string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.URL+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+n.AccessKey())
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

// Eventually waits for a condition.
func Eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	end := time.Now().Add(Limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var err error
	for time.Now().Before(end) {
		if err = ok(); err == nil {
			return
		}
		<-tick.C
	}
	t.Fatalf("%s: not within %v: %v", what, Limit, err)
}

// BusyPort listens on a port of the loopback interface until the test ends, and returns its address.
func BusyPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return fmt.Sprint(l.Addr())
}
