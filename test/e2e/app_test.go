//go:build e2e

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/test/nodelab"
)

// appServer is a program without dependencies that says which version it is, and what it counts.
const appServer = `
const http = require('http');
let count = 0;
http.createServer((req, res) => {
  if (req.url === '/count') count++;
  res.end('version %s, ' + process.env.GREETING + ', ' + count + '\n');
}).listen(process.env.PORT, () => console.log('serving on ' + process.env.PORT));
`

// appLab is an app on a node.
type appLab struct {
	t    *testing.T
	ctx  context.Context
	n    *nodelab.Node
	c    *client.Client
	http *http.Client
}

// sources returns the files of a version of the app.
func sources(version string) map[string]string {
	return map[string]string{
		"package.json": `{"name": "site", "scripts": {"start": "node server.js"}}`,
		"server.js":    fmt.Sprintf(appServer, version),
	}
}

// archive returns a tar archive with files.
func archive(t *testing.T, files map[string]string) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data := []byte(files[name])
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))})
		if err == nil {
			_, err = w.Write(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// deploy uploads a version and waits until it is live.
func (l *appLab) deploy(version string) api.Deployment {
	l.t.Helper()
	up, err := l.c.Apps.Upload(l.ctx, "site", archive(l.t, sources(version)))
	if err != nil {
		l.t.Fatal(err)
	}
	began := time.Now()
	d, err := l.c.Apps.Deploy(l.ctx, "site", api.DeployRequest{Upload: up.ID})
	if err != nil {
		l.t.Fatal(err)
	}
	var log strings.Builder
	err = l.c.Apps.DeployLogs(l.ctx, "site", d.ID, 0, true, func(line api.AppLogLine) error {
		fmt.Fprintf(&log, "%s %s\n", line.Step, line.Line)
		return nil
	})
	if err == nil {
		d, err = l.c.Apps.Deployment(l.ctx, "site", d.ID)
	}
	if err != nil || d.Status != api.DeploymentLive {
		l.t.Fatalf("deployment of %s: %+v, %v\n%s", version, d, err, log.String())
	}
	l.t.Logf("version %s was live after %s", version, time.Since(began).Round(time.Millisecond))
	return d
}

// push pushes a version to the repository of the app and reads the log of its deployment as git shows it.
func (l *appLab) push(version string) {
	l.t.Helper()
	dir := l.t.TempDir()
	for name, text := range sources(version) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	git := func(args ...string) (string, error) {
		args = append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b.c"}, args...)
		cmd := exec.CommandContext(l.ctx, "git", args...)
		cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_GLOBAL=/dev/null",
			"GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{"init", "-q", "-b", "main"}, {"add", "."}, {"commit", "-q", "-m", "a version"}} {
		if out, err := git(args...); err != nil {
			l.t.Fatalf("git %s: %v\n%s", args[0], err, out)
		}
	}
	remote, err := url.Parse(l.n.URL + "/git/site.git")
	if err != nil {
		l.t.Fatal(err)
	}
	remote.User = url.UserPassword("x", "pds_wrong")
	if out, err := git("push", remote.String(), "main"); err == nil || strings.Contains(out, "remote: =>") {
		l.t.Errorf("push with a wrong key: %v\n%s", err, out)
	}
	remote.User = url.UserPassword("x", l.n.AccessKey())
	began := time.Now()
	out, err := git("push", remote.String(), "main")
	if err != nil || !strings.Contains(out, "remote: Live at ") {
		l.t.Fatalf("git push: %v\n%s", err, out)
	}
	l.t.Logf("version %s was pushed and live after %s", version, time.Since(began).Round(time.Millisecond))
}

// get requests a path of the app through the edge.
func (l *appLab) get(path string) (string, error) {
	r, err := http.NewRequestWithContext(l.ctx, http.MethodGet, l.n.URL+path, nil)
	if err != nil {
		return "", err
	}
	r.Host = "site.app.localhost"
	response, err := l.http.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", response.StatusCode, body)
	}
	return string(body), err
}

// wants checks what the app responds to a request.
func (l *appLab) wants(path, want string) {
	l.t.Helper()
	began := time.Now()
	got, err := l.get(path)
	if err != nil || !strings.Contains(got, want) {
		l.t.Errorf("GET %s: %q, %v; want %q", path, got, err, want)
	}
	l.t.Logf("GET %s took %s", path, time.Since(began).Round(time.Millisecond))
}

// TestApps deploys an app with real guests, replaces it under load without a failed request, lets it sleep, wakes it
// once for many requests, and goes back.
func TestApps(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("base")
	c, err := client.New(n.URL, n.AccessKey())
	if err != nil {
		t.Fatal(err)
	}
	l := &appLab{t: t, ctx: t.Context(), n: n, c: c, http: &http.Client{Timeout: 30 * time.Second}}
	_, err = c.Apps.Create(l.ctx, api.CreateAppRequest{Name: "site", Env: map[string]string{"GREETING": "hello"},
		Health: &api.AppHealth{Path: "/"}, Warm: []string{"/", "/"}})
	if err != nil {
		t.Fatal(err)
	}
	l.deploy("one")
	l.wants("/", "version one, hello, 0")
	l.underLoad(func() { l.push("two") })
	l.wants("/count", "version two, hello, 1")
	l.sleepAndWake()
	began := time.Now()
	if _, err := c.Apps.Rollback(l.ctx, "site", ""); err != nil {
		t.Fatal(err)
	}
	l.wants("/", "version one, hello, 0")
	t.Logf("the first new response came %s after the call of rollback", time.Since(began).Round(time.Millisecond))
	if err := c.Apps.Delete(l.ctx, "site"); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	nodelab.NothingLeft(t, dir)
}

// underLoad sends requests while f runs: all succeed.
func (l *appLab) underLoad(f func()) {
	l.t.Helper()
	stop := make(chan struct{})
	var clients sync.WaitGroup
	var mu sync.Mutex
	sent, failed := 0, []error{}
	for range 4 {
		clients.Go(func() {
			tick := time.NewTicker(80 * time.Millisecond)
			defer tick.Stop()
			for {
				_, err := l.get("/")
				mu.Lock()
				sent++
				if err != nil {
					failed = append(failed, err)
				}
				mu.Unlock()
				select {
				case <-stop:
					return
				case <-tick.C:
				}
			}
		})
	}
	f()
	close(stop)
	clients.Wait()
	if len(failed) > 0 || sent < 20 {
		l.t.Errorf("of %d requests %d failed: %v", sent, len(failed), failed)
	}
	l.t.Logf("%d requests were served", sent)
}

// sleepAndWake lets the app sleep and sends 50 requests at once.
func (l *appLab) sleepAndWake() {
	l.t.Helper()
	idle := int64(1)
	if _, err := l.c.Apps.Update(l.ctx, "site", api.UpdateAppRequest{IdleTimeoutSeconds: &idle}); err != nil {
		l.t.Fatal(err)
	}
	nodelab.Eventually(l.t, "sleep", func() error {
		a, err := l.c.Apps.Get(l.ctx, "site")
		if err == nil && a.Status != api.AppHibernated {
			err = fmt.Errorf("the app is %s", a.Status)
		}
		return err
	})
	idle = 3600
	if _, err := l.c.Apps.Update(l.ctx, "site", api.UpdateAppRequest{IdleTimeoutSeconds: &idle}); err != nil {
		l.t.Fatal(err)
	}
	before, err := l.c.Apps.Stats(l.ctx, "site")
	if err != nil {
		l.t.Fatal(err)
	}
	var clients sync.WaitGroup
	began := time.Now()
	for range 50 {
		clients.Go(func() {
			if got, err := l.get("/"); err != nil || !strings.Contains(got, "version two, hello, 1") {
				l.t.Errorf("%q, %v: the memory of the program is not what it was", got, err)
			}
		})
	}
	clients.Wait()
	l.t.Logf("50 requests woke the app and were served in %s", time.Since(began).Round(time.Millisecond))
	after, err := l.c.Apps.Stats(l.ctx, "site")
	if err != nil || after.Wakes != before.Wakes+1 || after.Replicas != 1 || after.Hibernates != 1 {
		l.t.Errorf("%+v, %v; before %+v", after, err, before)
	}
}
