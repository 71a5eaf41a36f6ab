package function

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Files that are looked for if no entrypoint is set.
var defaults = map[string][]string{
	"python": {"handler.py", "main.py", "app.py"},
	"nodejs": {
		"index.js", "index.mjs", "index.cjs", "index.ts", "index.mts", "handler.js", "handler.mjs", "handler.ts",
		"main.js", "main.mjs", "main.ts",
	},
	"provided": {"bootstrap"},
}

// entrypoint returns the file of the handler, and the name of an object in it.
func (p Place) entrypoint(runtime, entrypoint string) (file, name string, f *failure) {
	candidates := defaults[runtime]
	if entrypoint != "" {
		file, name, _ = strings.Cut(entrypoint, ":")
		candidates = []string{file}
	}
	root, err := os.OpenRoot(p.Code)
	if err != nil {
		return "", "", failed(typeNotFound, "the function has no code: %s", err)
	}
	defer root.Close() //nolint:errcheck // it was only read
	for _, c := range candidates {
		if info, err := root.Stat(filepath.Clean(c)); err == nil && info.Mode().IsRegular() {
			return filepath.Join(p.Code, c), name, nil
		}
	}
	if len(candidates) == 0 {
		return "", "", failed(typeUnsupported, "runtime %q is not known", runtime)
	}
	return "", "", failed(typeNotFound, "the bundle has no file %s: name one as the entrypoint",
		strings.Join(candidates, ", "))
}

// open starts to load the handler. The caller holds s.mu.
func (s *Server) open(ctx context.Context, n int) (handler, *failure) {
	file, name, f := s.place.entrypoint(s.cfg.Runtime, s.cfg.Entrypoint)
	if f != nil {
		return nil, f
	}
	socket := s.place.Socket + "." + strconv.Itoa(n)
	var program string
	var err error
	switch s.cfg.Runtime {
	case "python":
		program, err = s.place.python()
		if err == nil {
			return s.openShim(ctx, socket, "shim.py", shimPython, []string{program, "-X", "faulthandler"}, file, name)
		}
	case "nodejs":
		program, err = exec.LookPath("node")
		if err == nil {
			args := append([]string{program, "--enable-source-maps"}, stripTypes(program, file)...)
			return s.openShim(ctx, socket, "shim.mjs", shimNode, args, file, name)
		}
	default:
		return s.openLambda(file)
	}
	return nil, failed(typeUnsupported, "the machine cannot run %s: %s", s.cfg.Runtime, err)
}

// python returns the interpreter: of the environment with the function's packages, if it has any.
func (p Place) python() (string, error) {
	program := filepath.Join(p.packages(), "bin", "python")
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	return exec.LookPath("python3")
}

// packages is the directory of the environment with the packages of a function in Python.
func (p Place) packages() string { return filepath.Join(p.State, "python") }

// stripTypes returns the options of a Node.js that runs TypeScript only when asked to.
func stripTypes(node, file string) []string {
	if ext := filepath.Ext(file); ext != ".ts" && ext != ".mts" && ext != ".cts" {
		return nil
	}
	const option = "--experimental-transform-types"
	ask := fmt.Sprintf("process.exit(process.allowedNodeEnvironmentFlags.has(%q) ? 0 : 1)", option)
	if exec.Command(node, "-e", ask).Run() != nil {
		return nil // what it does with the file says the rest
	}
	return []string{option, "--disable-warning=ExperimentalWarning"}
}

// environ returns the variables of the handler's process.
func (s *Server) environ(more ...string) []string {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8",
		"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1",
	}
	for _, pair := range os.Environ() { // of the machine's template
		if name, v, _ := strings.Cut(pair, "="); v != "" && slices.Contains([]string{"PATH", "LANG", "TZ"}, name) {
			env[name] = v
		}
	}
	if s.cfg.Runtime == "python" {
		env["PATH"] = filepath.Join(s.place.packages(), "bin") + ":" + env["PATH"]
	}
	maps.Copy(env, s.env)
	env["PANDASTACK_FUNCTION_NAME"] = s.cfg.Name
	env["PANDASTACK_FUNCTION_VERSION"] = strconv.FormatInt(s.cfg.Version, 10)
	env["PANDASTACK_FUNCTION_MEMORY_MB"] = strconv.Itoa(s.cfg.MemoryMB)
	list := slices.Clone(more)
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list
}

// openShim starts a shim, which is written beside the installed packages.
func (s *Server) openShim(
	ctx context.Context, socket, name string, source []byte, args []string, file, object string,
) (handler, *failure) {
	at := filepath.Join(s.place.State, name)
	if err := os.WriteFile(at, source, 0o644); err != nil {
		return nil, failed(typeUnsupported, "write the shim: %s", err)
	}
	c := command{argv: append(args, at, file)}
	if object != "" {
		c.argv = append(c.argv, object)
	}
	names := slices.Sorted(maps.Keys(s.env))
	c.env = s.environ("PANDASTACK_VARIABLES=" + strings.Join(names, ","))
	sh, err := startShim(ctx, s.place, socket, c, s.print)
	if err != nil {
		return nil, failed(typeUnsupported, "%s", err)
	}
	return &shimHandler{shim: sh, server: s, script: append(slices.Clone(args), file)}, nil
}

// shimHandler calls a handler through its shim.
type shimHandler struct {
	*shim
	server *Server
	script []string // command of a script
}

func (h *shimHandler) proc() *process { return h.process }

func (h *shimHandler) ready(ctx context.Context) (string, *failure) {
	select {
	case <-h.loaded:
	case <-ctx.Done():
		return "", timedOut()
	}
	if h.broken {
		return "", &h.failure
	}
	return h.done.Style, nil
}

func (h *shimHandler) has(kind string) bool { return slices.Contains(h.done.Handlers, kind) }

func (h *shimHandler) event(ctx context.Context, c *call, kind string, event []byte, to reply) (*failure, *int) {
	switch {
	case h.has("script"):
		return h.runScript(ctx, c, event, to)
	case h.has(kind):
	case h.has(callEvent):
		kind = callEvent
	case h.has(callHTTP):
		return asRequest(ctx, c, event, to, h.call)
	case c.rehearsal && len(h.done.Handlers) > 0:
		kind = h.done.Handlers[0]
	default:
		return failed(typeNoHandler, "the function has no handler for events"), nil
	}
	return h.call(ctx, c.start(kind), strings.NewReader(string(event)), to)
}

func (h *shimHandler) request(
	ctx context.Context, c *call, r *http.Request, body *requestBody, to reply,
) (*failure, *int) {
	if !h.has(callHTTP) {
		return asEvent(ctx, c, r, body, to, func(
			ctx context.Context, c *call, event []byte, to reply,
		) (*failure, *int) {
			return h.event(ctx, c, callEvent, event, to)
		})
	}
	if err := body.duplex(); err != nil {
		return failed(typeUnsupported, "%s", err), nil
	}
	in := c.start(callHTTP)
	in.Method, in.URL, in.Host = r.Method, r.RequestURI, r.Host
	in.Headers = append(in.Headers, [2]string{"host", r.Host})
	if r.ContentLength > 0 {
		in.Headers = append(in.Headers, [2]string{"content-length", strconv.FormatInt(r.ContentLength, 10)})
	}
	for name, values := range r.Header {
		for _, value := range values {
			if !slices.Contains(hopHeaders, name) {
				in.Headers = append(in.Headers, [2]string{strings.ToLower(name), value})
			}
		}
	}
	return h.call(ctx, in, body, to)
}

func (h *shimHandler) restored(ctx context.Context, env map[string]string) *failure {
	_, f := h.exchange(ctx, start{Kind: callRestored, Env: env}, nil)
	return f
}

// stampOf returns a hash of the names, sizes and times of the files below dir.
func stampOf(dir string) string {
	sum := sha256.New()
	// A file that goes away meanwhile is one that has changed.
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == "__pycache__" || d.Name() == ".git") {
			return fs.SkipDir
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && !d.IsDir() {
			fmt.Fprintf(sum, "%q %d %d\n", path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	return hex.EncodeToString(sum.Sum(nil))
}
