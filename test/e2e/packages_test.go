//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/test/nodelab"
)

// sciencePackages are the Python packages of template code-interpreter for charts and tables.
var sciencePackages = []string{
	"contourpy",
	"cycler",
	"fonttools",
	"kiwisolver",
	"matplotlib",
	"numpy",
	"packaging",
	"pandas",
	"pillow",
	"pyparsing",
	"python-dateutil",
	"tzdata",
}

// packages creates a tar of sciencePackages for the Python version of guests, in the background. The returned function
// waits and returns its path.
func packages(t *testing.T, n *nodelab.Node) func() (string, error) {
	var box nodelab.Sandbox
	n.JSON(&box, "sandbox", "create", "--template", "base")
	version := n.Sh(box.ID, `python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'`)
	n.JSON(nil, "sandbox", "delete", box.ID)
	root := nodelab.Repository(t)
	path := filepath.Join(root, ".cache", "clients", "packages-"+version+".tar")
	var err error
	var done sync.WaitGroup
	done.Go(func() { err = writePackages(t.Context(), root, version, path) })
	t.Cleanup(done.Wait)
	return func() (string, error) { done.Wait(); return path, err }
}

// writePackages writes the tar unless it exists: the wheels that the template's requirements pin by hash, without their
// tests.
func writePackages(ctx context.Context, root, version, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(root, "templates", "code-interpreter", "requirements.txt"))
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, selectRequirements(string(text), sciencePackages), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	site := filepath.Join(dir, "site")
	for _, command := range [][]string{
		{
			"python3", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:",
			"--python-version", version, "--target", site, "-r", list,
		},
		{
			"tar", "--exclude=./pandas/tests", "--exclude=./matplotlib/tests",
			"-cf", filepath.Join(dir, "tar"), "-C", site, ".",
		},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return os.Rename(filepath.Join(dir, "tar"), path)
}

var requirement = regexp.MustCompile(`(?m)^([a-z0-9-]+)==[^\\\n]*(?:\\\n[^\\\n]*)*$`)

// selectRequirements returns the requirements of the named packages with their hashes.
func selectRequirements(text string, names []string) []byte {
	var b strings.Builder
	for _, m := range requirement.FindAllStringSubmatch(text, -1) {
		if slices.Contains(names, m[1]) {
			b.WriteString(m[0] + "\n")
		}
	}
	return []byte(b.String())
}

// tunnel starts an HTTP proxy and returns its address. It connects the domain of the node under test and all names
// below it to this host, and rejects others. Clients whose name resolution cannot be configured use it.
func tunnel(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port, err := net.SplitHostPort(r.Host)
		if r.Method != http.MethodConnect || err != nil ||
			host != "panda.test" && !strings.HasSuffix(host, ".panda.test") {
			http.Error(w, "this proxy connects only to the node under test", http.StatusForbidden)
			return
		}
		splice(w, net.JoinHostPort("127.0.0.1", port))
	})}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(l) }) // always fails once the server is closed
	t.Cleanup(func() { _ = server.Close(); done.Wait() })
	return l.Addr().String()
}

// splice connects the client of a request with an address until one of them closes the connection.
func splice(w http.ResponseWriter, address string) {
	there, err := net.Dial("tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer here.Close()
	var up sync.WaitGroup
	defer up.Wait()
	up.Go(func() {
		_, _ = io.Copy(there, buffered) // either end may close at any time
		_ = there.Close()
	})
	if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err == nil {
		_, _ = io.Copy(here, there)
	}
	_ = here.Close()
	_ = there.Close()
}
