//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
	"github.com/pandastack/pandastack/test/nodelab"
)

// devServer is a JavaScript development server with the default configuration of a new project.
type devServer struct {
	name  string
	files map[string]string
	args  func(port string) []string
	page  string // expected text of the page
	// socket is the path of the WebSocket for updates. If it depends on the server, find extracts the rest of it from
	// the script at path script.
	script, socket string
	find           *regexp.Regexp
	protocols      []string
	hello          string // expected in the first message
}

var devServers = []devServer{
	{
		name: "vite",
		files: map[string]string{
			"index.html": `<!doctype html><h1>from vite</h1><script type="module" src="/main.js"></script>`,
			"main.js":    `console.log("main");`, "package.json": `{"type":"module"}`,
		},
		args: func(port string) []string { return []string{"vite/bin/vite.js", "--port", port, "--strictPort"} },
		page: "from vite", script: "/@vite/client", socket: "/?token=",
		find: regexp.MustCompile(`wsToken = "([^"]+)"`), protocols: []string{"vite-hmr"}, hello: `"connected"`,
	},
	{
		name: "next",
		files: map[string]string{
			"pages/index.js": `export default function Page() { return <h1>from next</h1>; }`, "package.json": `{}`,
		},
		args: func(port string) []string { return []string{"next/dist/bin/next", "dev", "-p", port} },
		page: "from next", socket: "/_next/webpack-hmr?page=%2F", hello: `"sync"`,
	},
}

var devPackages = []string{"vite@7.1.12", "next@15.5.6", "react@19.2.0", "react-dom@19.2.0"}

// loopback is a guest whose ports are those of this host's loopback interface.
type loopback struct{ guestapi.Guest }

// DialPort connects to a port of the loopback interface.
func (loopback) DialPort(ctx context.Context, port uint16) (net.Conn, error) {
	var errs []error
	for _, host := range []string{"127.0.0.1", "::1"} {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, fmt.Sprint(port)))
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %w", guestapi.ErrRefused, errors.Join(errs...))
}

// oneSandbox resolves every host name of a sandbox to the loopback guest.
type oneSandbox struct{}

// Address implements proxy.Resolver.
func (oneSandbox) Address(r *http.Request) (proxy.Address, error) {
	a, ok, err := proxy.AddressOfHost(r)
	if !ok {
		return proxy.Address{}, proxy.ErrNoRoute
	}
	return a, err
}

// Open implements proxy.Resolver.
func (oneSandbox) Open(_ *http.Request, a proxy.Address) (proxy.Route, error) {
	return proxy.Route{Address: a, Sandbox: api.Sandbox{ID: "sbxdev", Generation: 1}, Guest: loopback{}}, nil
}

// TestDevServers checks that unconfigured development servers work through the proxy, pages and sockets, although they
// refuse hosts and origins that they do not know.
func TestDevServers(t *testing.T) {
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("probe npm: it is not installed on this host")
	}
	place := filepath.Join(nodelab.Repository(t), ".cache", "clients", "devservers")
	tools := published{client: "vite", version: "7.1.12", more: devPackages[1:]}
	if err := tools.install(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	e := proxy.New(proxy.Config{Resolver: oneSandbox{}, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(e.Close)
	front := httptest.NewServer(e.Middleware(http.NotFoundHandler()))
	t.Cleanup(front.Close)
	for _, d := range devServers {
		t.Run(d.name, func(t *testing.T) { d.check(t, place, front.Listener.Addr().String()) })
	}
}

// check opens the page and the WebSocket of a development server.
func (d devServer) check(t *testing.T, place, front string) {
	port := d.start(t, place)
	host := port + "-sbxdev.panda.example.org"
	page := ""
	nodelab.Eventually(t, "the page", func() (err error) {
		page, err = getPage(t, front, host, "/")
		return err
	})
	if !strings.Contains(page, d.page) {
		t.Errorf("page = %.300s, want it to contain %q", page, d.page)
	}
	address := d.socket
	if d.script != "" {
		script, err := getPage(t, front, host, d.script)
		if err != nil {
			t.Fatal(err)
		}
		found := d.find.FindStringSubmatch(script)
		if found == nil {
			t.Fatalf("%s = %.300s, want the path of the WebSocket", d.script, script)
		}
		address += found[1]
	}
	ctx, cancel := context.WithTimeout(t.Context(), nodelab.Limit)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+front+address, &websocket.DialOptions{
		Host: host, Subprotocols: d.protocols, HTTPHeader: http.Header{"Origin": {"http://" + host}},
	})
	if err != nil {
		t.Fatalf("upgrade: %v", err)
	}
	defer c.CloseNow()
	_, message, err := c.Read(ctx)
	if err != nil || !strings.Contains(string(message), d.hello) {
		t.Errorf("first message = %.300s, %v, want it to contain %s", message, err, d.hello)
	}
}

// start runs the server in its own project directory until the test ends, and returns its port.
func (d devServer) start(t *testing.T, place string) string {
	t.Helper()
	project := filepath.Join(place, "project-"+d.name)
	for name, text := range d.files {
		at := filepath.Join(project, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	port := freePort(t)
	args := d.args(port)
	cmd := exec.Command("node", append([]string{filepath.Join(place, "node_modules", args[0])}, args[1:]...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = project, t.Output(), t.Output()
	cmd.Env = append(os.Environ(), "NEXT_TELEMETRY_DISABLED=1", "HOME="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its workers
		_ = cmd.Wait()                                      // killed
	})
	return port
}

// getPage requests a page with the headers of a browser.
func getPage(t *testing.T, front, host, path string) (string, error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+front+path, nil)
	if err != nil {
		return "", err
	}
	req.Host = host
	req.Header.Set("Accept", "text/html,*/*")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %.300s", path, res.StatusCode, text)
	}
	return string(text), err
}
