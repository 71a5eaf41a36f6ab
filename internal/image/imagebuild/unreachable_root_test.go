//go:build root

package imagebuild

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/recipe"
)

// bounded is how long a failure may take to be reported on a busy machine.
const bounded = 2 * time.Minute

// refusing returns an address without a listener.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, l.Close())
	return "http://" + l.Addr().String()
}

// breaking returns the address of a server that sends only the beginning of each reply.
func breaking(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "Origin: x\n") // an error means that the client has disconnected
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// silent returns the address of a server that accepts every connection and sends nothing.
func silent(t *testing.T) string {
	t.Helper()
	end := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() {
		close(end)
		s.Close()
	})
	return s.URL
}

// TestUnreachablePackages builds from package sources that cannot be reached: the error names the source and the
// remedy, it comes in time, and no files are left.
func TestUnreachablePackages(t *testing.T) {
	probetest.Need(t, probe.Config{}, probe.Root, probe.Tools)
	for name, mirror := range map[string]string{"refuses": refusing(t), "breaks": breaking(t), "silent": silent(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, err := recipe.Builtin(recipe.Options{Params: map[string]string{
				"postgres-16.pgdg.suite":       "noble",
				"postgres-16.pgdg.mirror":      mirror + "/main",
				"postgres-16.pgdg.pgdg_mirror": mirror + "/pgdg",
				"postgres-16.pgdg.pgdg_suite":  "noble-pgdg", "postgres-16.pgdg.pgdg_keyring": "/etc/hostname"}})
			must(t, err)
			dir := t.TempDir()
			opt := Options{
				Recipe: all["postgres-16.pgdg"],
				Work:   filepath.Join(dir, "work"),
				Cache:  filepath.Join(dir, "cache"),
				Image:  filepath.Join(dir, "image"),
				Data:   map[string]string{"data": filepath.Join(dir, "data")},
				Log:    func(l string) { t.Log(l) },
			}
			ctx, cancel := context.WithTimeout(t.Context(), bounded)
			defer cancel()
			if name == "silent" { // its limit is longer than a test
				ctx, cancel = context.WithTimeoutCause(ctx, time.Second, errors.New("enough"))
				defer cancel()
			}
			err = Build(ctx, opt)
			if err == nil || ctx.Err() != nil && name != "silent" {
				t.Fatalf("Root: got error %v, with context error %v", err, ctx.Err())
			}
			for _, want := range []string{
				mirror + "/main noble main", mirror + "/pgdg noble-pgdg main", "templates.params",
				"postgres-16.pgdg.mirror", "postgres-16.pgdg.pgdg_mirror", "postgres-16.pgdg.pgdg_keyring",
			} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %q: %v", want, err)
				}
			}
			for _, p := range []string{opt.Work, opt.Image, opt.Image + ".raw", opt.Data["data"]} {
				if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s exists after the error: %v", p, err)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(opt.Cache, "*.deb")); len(left) != 0 {
				t.Errorf("got cache %v", left)
			}
			if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
				t.Errorf("mounts are left below %s: %v", dir, err)
			}
		})
	}
}

// TestUnreachableParts fetches parts from registries that cannot be reached.
func TestUnreachableParts(t *testing.T) {
	const pins = "p==1.0 --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254\n"
	fetch := map[string]func(ctx context.Context, f fetcher) error{
		"npm": func(ctx context.Context, f fetcher) error {
			_, err := f.npm(ctx, recipe.Part{NPM: "p", Version: "1.0.0"})
			return err
		},
		"go": func(ctx context.Context, f fetcher) error {
			_, err := f.module(ctx, recipe.Part{Go: "m.example/p", Version: "v1.0.0"})
			return err
		},
		"pip3": func(ctx context.Context, f fetcher) error {
			_, err := f.wheels(ctx, []byte(pins), "3.11", "amd64")
			return err
		},
	}
	remedy := map[string]string{"npm": "npm config get registry", "go": "go env GOPROXY", "pip3": "pip3 config list"}
	for _, how := range []string{"refuses", "silent"} {
		address := map[string]func(*testing.T) string{"refuses": refusing, "silent": silent}[how](t)
		for program, do := range fetch {
			t.Run(how+"-"+program, func(t *testing.T) {
				if err := requireProgram(program, "install it"); err != nil {
					t.Skipf("probe %s: %v", program, err)
				}
				for name, value := range map[string]string{
					"npm_config_registry": address, "npm_config_fetch_retries": "0",
					"GOPROXY": address, "GOFLAGS": "", "GONOSUMDB": "*", "GONOPROXY": "", "GOPRIVATE": "",
					"PIP_INDEX_URL": address + "/simple", "PIP_CONFIG_FILE": "/dev/null",
				} {
					t.Setenv(name, value)
				}
				tmp := t.TempDir()
				t.Setenv("TMPDIR", tmp)
				f := fetcher{dir: t.TempDir(), work: t.TempDir(), limit: bounded}
				want := []string{remedy[program], address}
				if how == "silent" {
					f.limit = time.Second
					want = []string{remedy[program], "it did not come within 1s"}
				}
				err := do(t.Context(), f)
				for _, w := range want {
					if err == nil || !strings.Contains(err.Error(), w) {
						t.Errorf("got error %v, want one that contains %q", err, w)
					}
				}
				for _, dir := range []string{f.dir, f.work, tmp} {
					if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
						t.Errorf("%s: got entries %v, %v", dir, left, err)
					}
				}
			})
		}
	}
}
