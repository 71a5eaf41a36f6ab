// Package githttp serves the repositories of apps to git: /git/<app>.git by the smart HTTP protocol.
//
// A key is the password; any user name will do. Requests are authorized and bounded here, and answered by git in the
// machine of the repository. A push that changes the branch of its app is deployed, and the build is shown on the
// terminal of who pushes.
//
// Server is an http.Handler and may be called concurrently.
package githttp

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/appspec"
	"github.com/pandastack/pandastack/internal/control/app/repo"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// Prefix is what the paths of repositories begin with.
const Prefix = "/git/"

// Config configures a Server. Zero fields but PushMiB have defaults.
type Config struct {
	PushMiB int           // that one push may send
	PerApp  int           // requests to one repository at once; 4
	Follow  time.Duration // how long a push waits for its deployment; 1 h
}

// Deps are the components that a Server calls. All are required.
type Deps struct {
	Guard        *access.Guard
	Apps         Apps
	Repositories Repositories
	Log          *slog.Logger
}

// Apps are the methods of the service for apps that this server uses.
type Apps interface {
	Get(ctx context.Context, p auth.Principal, app string) (api.App, error)
	DeployFrom(
		ctx context.Context,
		p auth.Principal,
		app api.AppID,
		src appspec.Source,
		message string,
	) (api.Deployment, error)
	Deployment(ctx context.Context, p auth.Principal, app string, id api.DeploymentID) (api.Deployment, error)
	BuildLog(
		ctx context.Context,
		p auth.Principal,
		app string,
		id api.DeploymentID,
		after int64,
		follow bool,
		yield func(api.AppLogLine) error,
	) error
}

// Repositories serves requests of git; *repo.Service does.
type Repositories interface {
	Serve(ctx context.Context, a api.App, req repo.Request) error
}

// Server serves repositories. Make one with New.
type Server struct {
	cfg  Config
	deps Deps

	mu    sync.Mutex
	inUse map[api.AppID]int // requests under way; guarded by mu
}

// New returns a server.
func New(cfg Config, deps Deps) (*Server, error) {
	if cfg.PushMiB < 1 || deps.Guard == nil || deps.Apps == nil || deps.Repositories == nil || deps.Log == nil {
		return nil, errors.New("githttp: a size, guard, apps, repositories and log are required")
	}
	if cfg.PerApp <= 0 {
		cfg.PerApp = 4
	}
	if cfg.Follow <= 0 {
		cfg.Follow = time.Hour
	}
	return &Server{cfg: cfg, deps: deps, inUse: map[api.AppID]int{}}, nil
}

// Middleware serves the paths of repositories, and hands other requests to next.
func (s *Server) Middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, Prefix) {
			s.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// call is one request.
type call struct {
	s         *Server
	w         http.ResponseWriter
	r         *http.Request
	pattern   string // of the table of operations
	needs     string // pattern of the operation that the caller needs the right to
	program   repo.Program
	advertise bool
	name      string // of the app, as in the path
	token     string
	p         auth.Principal
	app       api.App
	began     bool // the response has begun
	status    int
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began, id := time.Now(), api.NewRequestID()
	w.Header().Set("X-Request-Id", string(id))
	w.Header().Set("Cache-Control", "no-cache, max-age=0, must-revalidate")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	c := &call{s: s, r: r, status: http.StatusOK}
	c.w = access.Watch(w, func(status int) { c.began, c.status = true, status })
	err := c.serve()
	if err != nil {
		c.fail(err, id)
	}
	if c.pattern != "" {
		s.deps.Guard.Record(r, access.Call{
			Face: access.Git, Pattern: c.pattern, Principal: c.p, Token: c.token, Target: c.target(), Status: c.status,
			Request: string(id), Began: began,
		})
	}
}

func (c *call) target() string {
	if c.app.ID != "" {
		return string(c.app.ID)
	}
	return c.name
}

func (c *call) serve() error {
	if err := c.parse(); err != nil {
		return err
	}
	if err := c.authorize(); err != nil {
		return err
	}
	leave, err := c.s.deps.Guard.Enter(c.w, c.r, access.Git, c.pattern, c.p.Workspace)
	if err != nil {
		return err
	}
	defer leave()
	if c.app, err = c.s.deps.Apps.Get(c.r.Context(), c.p, c.name); err != nil {
		return err
	}
	if from := deployedFrom(c.app); from != "" && c.program == repo.ReceivePack {
		return api.Errorf(api.Conflict, "app %s is deployed from %s: push there, or make an app without git_url and "+
			"image", c.app.Name, from)
	}
	if err := c.s.enter(c.app.ID); err != nil {
		return err
	}
	defer c.s.leave(c.app.ID)
	switch {
	case c.advertise:
		return c.serveRefs()
	case c.program == repo.ReceivePack:
		return c.servePush()
	}
	return c.serveFetch()
}

// deployedFrom returns what an app is deployed from in place of its repository here; "" for one that is pushed.
func deployedFrom(a api.App) string {
	if a.GitURL != "" {
		return a.GitURL
	}
	return a.Image
}

// parse finds out what is asked.
func (c *call) parse() error {
	name, rest, ok := strings.Cut(strings.TrimPrefix(c.r.URL.Path, Prefix), "/")
	name, isRepository := strings.CutSuffix(name, ".git")
	if !ok || !isRepository || !api.ValidAppName(name) && !api.AppID(name).Valid() {
		return api.Errorf(api.NotFound, "no such repository: those of apps are at %s<app>.git", Prefix)
	}
	c.name = name
	service, _ := strings.CutPrefix(rest, "git-")
	if c.advertise = rest == "info/refs"; c.advertise {
		service, ok = strings.CutPrefix(c.r.URL.Query().Get("service"), "git-")
		if !ok {
			return api.Errorf(api.Invalid, "this server has the smart HTTP protocol of git alone: use a git client")
		}
	}
	switch c.program = repo.Program(service); {
	case c.program != repo.UploadPack && c.program != repo.ReceivePack:
		return api.Errorf(api.NotFound, "no such path in a repository: use a git client")
	case c.advertise && c.r.Method != http.MethodGet, !c.advertise && c.r.Method != http.MethodPost:
		return api.Errorf(api.NotAllowed, "%s is not possible here: use a git client", c.r.Method)
	}
	c.needs = "POST /git/{app}/git-" + service
	c.pattern = c.needs
	if c.advertise {
		c.pattern = "GET /git/{app}/info/refs"
	}
	return nil
}

// authorize checks the key, which is the password. git asks without one first, which is no failed attempt.
func (c *call) authorize() error {
	_, password, ok := c.r.BasicAuth()
	if !ok || password == "" {
		if err := c.s.deps.Guard.AdmitAddress(c.w, c.r); err != nil {
			return err
		}
		return api.Errorf(api.Unauthenticated,
			"a key is needed: any user name will do, and the password is a key (pds_...)")
	}
	c.token = password
	need, _ := access.NeedOf(access.Git, c.needs)
	p, err := c.s.deps.Guard.Admit(c.w, c.r, password, need)
	c.p = p
	return err
}

// enter counts a request to a repository.
func (s *Server) enter(id api.AppID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inUse[id] >= s.cfg.PerApp {
		return api.Errorf(api.RateLimited, "%d requests to the repository are under way: try again when one has ended",
			s.inUse[id])
	}
	s.inUse[id]++
	return nil
}

func (s *Server) leave(id api.AppID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inUse[id]--; s.inUse[id] == 0 {
		delete(s.inUse, id)
	}
}

// fail sends an error as text, which git shows line by line.
func (c *call) fail(err error, id api.RequestID) {
	e := api.AsError(err)
	if e.Code == api.Internal {
		c.s.deps.Log.ErrorContext(c.r.Context(), "request of git failed", "err", err, "request", id)
	}
	if c.began {
		return // the client sees that the response broke off
	}
	if e.Code == api.Unauthenticated {
		c.w.Header().Set("WWW-Authenticate", `Basic realm="PandaStack: the password is a key", charset="UTF-8"`)
	}
	if e.Retryable && c.w.Header().Get("Retry-After") == "" {
		c.w.Header().Set("Retry-After", "1")
	}
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.w.WriteHeader(e.Code.Info().Status)
	_, _ = fmt.Fprintf(c.w, "%s (%s, request %s)\n", printable(e.Message), e.Code, id) // the client may be gone
}

// maxWants bounds the body of a fetch.
const maxWants = 8 << 20

// body returns the body of a request, of limit bytes at most.
func (c *call) body(limit int64) (io.Reader, error) {
	if want := "application/x-git-" + string(c.program) + "-request"; c.r.Header.Get("Content-Type") != want {
		return nil, api.Errorf(api.Invalid, "Content-Type is not %s: use a git client", want)
	}
	var in io.Reader = c.r.Body
	switch encoding := c.r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, api.Wrap(api.Invalid, err, "the body is not a gzip stream")
		}
		in = z
	default:
		return nil, api.Errorf(api.Invalid, "Content-Encoding %.20q is not known: use gzip or none", encoding)
	}
	return &limited{in, limit}, nil
}

// limited is a reader that fails behind a number of bytes.
type limited struct {
	r    io.Reader
	left int64
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, api.Errorf(api.TooLarge, "the request is too large")
	}
	n, err := l.r.Read(p[:min(int64(len(p)), l.left)])
	l.left -= int64(n)
	return n, err
}

// begin sends the header of a response. What is written to the returned writer is sent at once.
func (c *call) begin(kind string) *terminal {
	c.w.Header().Set("Content-Type", "application/x-git-"+string(c.program)+"-"+kind)
	control := http.NewResponseController(c.w)
	_ = control.EnableFullDuplex() // HTTP/2 has it in any case
	return &terminal{out: c.w, flush: func() { _ = control.Flush() }}
}

func (c *call) serveRefs() error {
	out := c.begin("advertisement")
	first := &atFirst{out: out}
	if !strings.Contains(c.r.Header.Get("Git-Protocol"), "version=2") || c.program == repo.ReceivePack {
		line := "# service=git-" + string(c.program) + "\n"
		first.head = fmt.Sprintf("%04x%s%s", header+len(line), line, flush)
	}
	return c.s.deps.Repositories.Serve(c.r.Context(), c.app, repo.Request{
		Program: c.program, Advertise: true, Protocol: c.r.Header.Get("Git-Protocol"), Out: first,
	})
}

// atFirst writes a head before the first bytes, so that there is none before an error.
type atFirst struct {
	out  io.Writer
	head string
}

// Write implements io.Writer.
func (a *atFirst) Write(p []byte) (int, error) {
	if a.head != "" {
		if _, err := io.WriteString(a.out, a.head); err != nil {
			return 0, err
		}
		a.head = ""
	}
	return a.out.Write(p)
}

func (c *call) serveFetch() error {
	in, err := c.body(maxWants)
	if err != nil {
		return err
	}
	return c.s.deps.Repositories.Serve(c.r.Context(), c.app, repo.Request{
		Program: c.program, Protocol: c.r.Header.Get("Git-Protocol"), In: in, Out: c.begin("result"),
	})
}

// beyondPush is how many times the size of a push is read, and dropped, so that the client gets to see the answer.
const beyondPush = 4

func (c *call) servePush() error {
	in, err := c.body(beyondPush * int64(c.s.cfg.PushMiB) << 20)
	if err != nil {
		return err
	}
	reader := bufio.NewReader(in)
	req, err := readPush(reader)
	if err != nil {
		return api.Wrap(api.Invalid, err, err.Error())
	}
	out := c.begin("result")
	split := &demux{out: out}
	serve := repo.Request{
		Program: c.program, Protocol: c.r.Header.Get("Git-Protocol"),
		In: io.MultiReader(strings.NewReader(string(req.raw)), reader), Out: split,
	}
	var plain reportBuffer
	if !req.sideband {
		serve.Out = io.MultiWriter(out, &plain)
	}
	err = c.s.deps.Repositories.Serve(c.r.Context(), c.app, serve)
	// A client that still sends would not read the answer.
	_, _ = io.Copy(io.Discard, reader)
	switch {
	case err != nil && req.sideband && len(req.commands) > 0 && len(split.rest) == 0:
		e := api.AsError(err)
		if e.Code == api.Internal {
			c.s.deps.Log.ErrorContext(c.r.Context(), "push failed", "err", err, "app", c.app.ID)
		}
		out.fail(fmt.Sprintf("%s (%s)", e.Message, e.Code))
		return nil
	case err != nil:
		return err
	case !req.sideband:
		c.deploy(c.r.Context(), nil, req, readReport(plain))
		return nil
	case split.ended:
		said := readReport(split.report)
		explain(out, said, string(split.printed), c.s.cfg.PushMiB)
		c.deploy(c.r.Context(), out, req, said)
		_, err = io.WriteString(out, flush)
	}
	return err
}

// reportBuffer keeps the begin of what git says.
type reportBuffer []byte

// Write implements io.Writer.
func (b *reportBuffer) Write(p []byte) (int, error) {
	*b = append(*b, p[:min(len(p), maxReport-len(*b))]...)
	return len(p), nil
}
