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
)

// science are the packages of template code-interpreter that cells draw charts and show tables with.
var science = []string{
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

// packages makes a tar of them for the Python that guests have, while other things are done; the answer waits for it
// and gives its path.
func packages(t *testing.T, n *node) func() (string, error) {
	var box sandbox
	n.json(&box, "sandbox", "create", "--template", "base")
	version := n.sh(box.ID, `python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])'`)
	n.json(nil, "sandbox", "delete", box.ID)
	root := repository(t)
	path := filepath.Join(root, ".cache", "clients", "packages-"+version+".tar")
	var err error
	var done sync.WaitGroup
	done.Go(func() { err = pack(t.Context(), root, version, path) })
	t.Cleanup(done.Wait)
	return func() (string, error) { done.Wait(); return path, err }
}

// pack writes the tar, once: the wheels that the template's list of requirements names by their hashes, without
// their tests.
func pack(ctx context.Context, root, version, path string) error {
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
	if err := os.WriteFile(list, selected(string(text), science), 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	site := filepath.Join(dir, "site")
	for _, command := range [][]string{
		{"python3", "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", version, "--target", site, "-r", list},
		{"tar", "--exclude=./pandas/tests", "--exclude=./matplotlib/tests", "-cf", filepath.Join(dir, "tar"), "-C", site, "."},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return os.Rename(filepath.Join(dir, "tar"), path)
}

var requirement = regexp.MustCompile(`(?m)^([a-z0-9-]+)==[^\\\n]*(?:\\\n[^\\\n]*)*$`)

// selected gives the requirements of the packages that are named, each with its hashes.
func selected(text string, names []string) []byte {
	var b strings.Builder
	for _, m := range requirement.FindAllStringSubmatch(text, -1) {
		if slices.Contains(names, m[1]) {
			b.WriteString(m[0] + "\n")
		}
	}
	return []byte(b.String())
}

// tunnel is a proxy in place of a name server that knows the domain of the node under test, for clients whose look-up
// of names cannot be told otherwise: that and every name below it is this machine, and no other is reached. The
// answer is its address.
func tunnel(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, port, err := net.SplitHostPort(r.Host)
		if r.Method != http.MethodConnect || err != nil ||
			host != "panda.test" && !strings.HasSuffix(host, ".panda.test") {
			http.Error(w, "this leads to the node under test alone", http.StatusForbidden)
			return
		}
		splice(w, net.JoinHostPort("127.0.0.1", port))
	})}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(l) }) // ends when it is closed
	t.Cleanup(func() { _ = server.Close(); done.Wait() })
	return l.Addr().String()
}

// splice connects whoever asked with an address until one of them has gone.
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
		_, _ = io.Copy(there, buffered) // either end may go at any time
		_ = there.Close()
	})
	if _, err := io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n"); err == nil {
		_, _ = io.Copy(here, there)
	}
	_ = here.Close()
	_ = there.Close()
}
