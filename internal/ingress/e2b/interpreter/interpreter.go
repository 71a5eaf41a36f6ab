// Package interpreter serves E2B's code interpreter (npm @e2b/code-interpreter 2.8.0) for one sandbox per request.
//
// It runs on the host, over package repl, and owns the HTTP shapes of that service. The caller has authorized the
// request. All requests may run at once; cells of one context run one after the other.
package interpreter

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/e2b/lenient"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/budget"
	"github.com/pandastack/pandastack/internal/lib/jsonstream"
)

// Port is the port of the interpreter in the host names that clients use.
const Port = 49999

// Target is a running sandbox.
type Target struct {
	ID        string
	Workspace string
	Guest     guestapi.Guest
}

type targetKey struct{}

// Server serves the interpreter's paths. Create it with New.
type Server struct {
	mux      *http.ServeMux
	patterns []string // of mux
	runner   *repl.Runner
	memory   *budget.Pool
	bodies   *lenient.Decoder
}

// New returns a server over the given runner, which other protocols may share.
//
// memory pays for what requests buffer, by workspace and sandbox; nil bounds nothing. bodies decodes the bodies of
// requests.
func New(runner *repl.Runner, memory *budget.Pool, bodies *lenient.Decoder) *Server {
	s := &Server{mux: http.NewServeMux(), runner: runner, memory: memory, bodies: bodies}
	on := func(pattern string, h func(http.ResponseWriter, *http.Request, Target)) {
		s.patterns = append(s.patterns, pattern)
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			t, _ := r.Context().Value(targetKey{}).(Target)
			h(w, r, t)
		})
	}
	on("GET /health", func(w http.ResponseWriter, _ *http.Request, _ Target) { reply(w, http.StatusOK, "OK") })
	on("POST /execute", s.execute)
	on("POST /contexts", s.create)
	on("GET /contexts", s.list)
	on("DELETE /contexts/{id}", s.remove)
	on("POST /contexts/{id}/restart", s.restart)
	return s
}

// Serve serves one request for the given sandbox.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, t Target) {
	memory := s.memory.Open(t.Workspace, t.ID)
	defer memory.Close()
	ctx := budget.NewContext(context.WithValue(r.Context(), targetKey{}, t), memory)
	s.mux.ServeHTTP(w, r.WithContext(ctx))
}

// Pattern returns the operation of a request, "" if there is none.
func (s *Server) Pattern(r *http.Request) string {
	_, pattern := s.mux.Handler(r)
	return pattern
}

// Patterns returns the patterns of net/http that are served.
func (s *Server) Patterns() []string { return slices.Clone(s.patterns) }

type contextResponse struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`
}

func toContextResponse(c repl.Context) contextResponse {
	return contextResponse{c.ID, string(c.Language), c.Dir}
}

// createContext starts a context, by default in the sandbox's own directory, and returns it with its directory.
func (s *Server) createContext(ctx context.Context, t Target, l repl.Language, dir string) (repl.Context, error) {
	c, err := s.runner.Create(ctx, t.ID, t.Guest, l, dir, "")
	if err != nil || dir != "" {
		return c, err
	}
	return repl.Find(ctx, t.Guest, c.ID)
}

// maxBody bounds the body of a request, code and variables, in bytes.
const maxBody = repl.MaxCode + 1<<20

// bodyCost is how much memory a byte of a body takes while it is decoded and used.
const bodyCost = 4

func (s *Server) decode(w http.ResponseWriter, r *http.Request, v any) bool {
	data, err := io.ReadAll(budget.FromContext(r.Context()).Reader(http.MaxBytesReader(w, r.Body, maxBody), bodyCost))
	if refused, ok := errors.AsType[*budget.Error](err); ok {
		fail(w, fmt.Errorf("%w: %w", guestapi.ErrBusy, refused))
		return false
	}
	if err == nil && len(strings.TrimSpace(string(data))) > 0 {
		err = s.bodies.Decode(r.Pattern, data, v)
	}
	if err != nil {
		http.Error(w, "body: does not match the request: "+err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(body)
}

// isGone reports whether an error says that the sandbox has ended or sleeps.
func isGone(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && (e.Code == api.NotFound || e.Code == api.WrongState || e.Code == api.Unavailable) ||
		errors.Is(err, guestapi.ErrLost)
}

func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	switch {
	case isGone(err):
		status = http.StatusBadGateway // as for a request to a sandbox that does not run
	case errors.Is(err, guestapi.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, guestapi.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, guestapi.ErrBusy):
		status = http.StatusTooManyRequests
	case errors.Is(err, guestapi.ErrTooLarge):
		status = http.StatusRequestEntityTooLarge
	}
	http.Error(w, err.Error(), status)
}

func (s *Server) create(w http.ResponseWriter, r *http.Request, t Target) {
	var req struct {
		Language string `json:"language"`
		Cwd      string `json:"cwd"`
	}
	if !s.decode(w, r, &req) {
		return
	}
	lang, err := languageOf(req.Language)
	if err != nil {
		fail(w, err)
		return
	}
	c, err := s.createContext(r.Context(), t, lang, req.Cwd)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusCreated, toContextResponse(c))
}

// languageOf parses a language. TypeScript runs in contexts of JavaScript, whose driver removes the types.
func languageOf(name string) (repl.Language, error) {
	if strings.EqualFold(name, "typescript") || strings.EqualFold(name, "ts") {
		return repl.JavaScript, nil
	}
	return repl.ParseLanguage(name)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, t Target) {
	all, err := repl.List(r.Context(), t.Guest)
	if err != nil {
		fail(w, err)
		return
	}
	// The default contexts come first: clients take the last one for the newest.
	out := []contextResponse{}
	for _, l := range []repl.Language{repl.Python, repl.JavaScript} {
		c := repl.Context{ID: repl.DefaultID(l), Language: l} // one that does not run starts with its first cell
		if i := slices.IndexFunc(all, func(o repl.Context) bool { return o.ID == c.ID }); i >= 0 {
			c = all[i]
			all = slices.Delete(all, i, i+1)
		} else if home, err := t.Guest.Stat(r.Context(), ".", ""); err == nil {
			c.Dir = home.Path
		} else {
			fail(w, err)
			return
		}
		out = append(out, toContextResponse(c))
	}
	slices.SortFunc(all, func(a, b repl.Context) int { return a.Created.Compare(b.Created) })
	for _, c := range all {
		out = append(out, toContextResponse(c))
	}
	reply(w, http.StatusOK, out)
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request, t Target) {
	c, err := repl.Find(r.Context(), t.Guest, r.PathValue("id"))
	if err == nil {
		err = s.runner.End(r.Context(), t.ID, t.Guest, c)
	}
	if err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// restart ends a context and starts a new one with the same id.
func (s *Server) restart(w http.ResponseWriter, r *http.Request, t Target) {
	c, err := repl.Find(r.Context(), t.Guest, r.PathValue("id"))
	if err != nil {
		fail(w, err)
		return
	}
	next, err := repl.Restart(r.Context(), t.Guest, c)
	if err != nil {
		fail(w, err)
		return
	}
	reply(w, http.StatusOK, toContextResponse(next))
}

// contextFor returns the context of a request: the one that it names, or the default one of its language.
func (s *Server) contextFor(r *http.Request, t Target, id, language string) (repl.Context, error) {
	if id != "" && language != "" {
		return repl.Context{}, fmt.Errorf("%w: context_id and language: give one, not both", guestapi.ErrInvalid)
	}
	if id == "" || id == repl.DefaultID(repl.Python) {
		lang, err := languageOf(language)
		if err != nil {
			return repl.Context{}, err
		}
		return repl.Default(r.Context(), t.Guest, lang)
	}
	c, err := repl.ParseID(id)
	if err == nil && id == repl.DefaultID(c.Language) {
		return repl.Default(r.Context(), t.Guest, c.Language)
	}
	return c, err
}

func (s *Server) execute(w http.ResponseWriter, r *http.Request, t Target) {
	var req struct {
		Code     string            `json:"code"`
		Context  string            `json:"context_id"`
		Language string            `json:"language"`
		Env      map[string]string `json:"env_vars"`
	}
	if !s.decode(w, r, &req) {
		return
	}
	c, err := s.contextFor(r, t, req.Context, req.Language)
	if err != nil {
		fail(w, err)
		return
	}
	cell := repl.Cell{Code: req.Code, Env: req.Env}
	if c.ID == repl.DefaultID(c.Language) && c.Language != repl.Bash {
		cell.Owner = t.ID
		if cell.Defaults, err = s.runner.Environment(r.Context(), t.ID, t.Guest); err != nil {
			fail(w, err)
			return
		}
	}
	out := &ndjsonWriter{w: w, out: bufio.NewWriterSize(w, 8<<10), flush: http.NewResponseController(w)}
	cell.OnStart = out.start
	_, err = s.runner.Run(
		r.Context(),
		t.ID,
		t.Guest,
		c,
		cell,
		out.event,
	)
	switch {
	case err == nil:
		_ = out.send(map[string]any{"type": "end_of_execution"}) // an error means that the client is gone
	case !out.started && (!errors.Is(err, repl.ErrEnded) || errors.Is(err, guestapi.ErrNotFound)):
		fail(w, err)
		return
	case isGone(err): // clients then ask whether the sandbox is there, and say that it was killed
		panic(http.ErrAbortHandler)
	default:
		failed := map[string]any{"type": "error", "name": "ExecutionEnded", "value": err.Error(), "traceback": ""}
		_ = out.send(failed) // an error means that the client is gone
		_ = out.send(map[string]any{"type": "unexpected_end_of_execution"})
	}
}

// ndjsonWriter sends one JSON value per line, each immediately.
type ndjsonWriter struct {
	w       http.ResponseWriter
	out     *bufio.Writer // to w
	flush   *http.ResponseController
	started bool
}

// start sends the header of the response. Clients measure the time of a cell from then on, so the header must not
// wait for the first output.
func (l *ndjsonWriter) start() {
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.w.WriteHeader(http.StatusOK)
	_ = l.flush.Flush() // the first line finds out if the client is gone
	l.started = true
}

func (l *ndjsonWriter) send(v map[string]any) error {
	if !l.started {
		l.start()
	}
	if err := jsonstream.Write(l.out, v); err != nil {
		return err
	}
	if err := l.out.WriteByte('\n'); err != nil {
		return err
	}
	if err := l.out.Flush(); err != nil {
		return err
	}
	return l.flush.Flush()
}

// resultFields are the protocol's names of media types.
var resultFields = map[string]string{
	"text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
	"image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf", "text/latex": "latex",
	"application/json": "json", "application/javascript": "javascript",
	"application/vnd.pandastack.data+json": "data", "application/vnd.pandastack.chart+json": "chart",
}

func (l *ndjsonWriter) event(e repl.Event) error {
	switch e.Kind {
	case repl.Stdout, repl.Stderr:
		return l.send(
			map[string]any{
				"type":      string(e.Kind),
				"text":      e.Text,
				"timestamp": time.Now().UTC().Format(time.RFC3339Nano),
			},
		)
	case repl.Count:
		return l.send(map[string]any{"type": "number_of_executions", "execution_count": e.Count})
	case repl.Failed:
		return l.send(map[string]any{"type": "error", "name": e.Name, "value": e.Value, "traceback": e.Traceback})
	}
	out := map[string]any{"type": "result", "is_main_result": e.Main}
	extra := map[string]any{}
	for kind, value := range e.Data {
		if name := resultFields[kind]; name == "text" && e.Main {
			out[name] = unquote(value)
		} else if name != "" {
			out[name] = value
		} else {
			extra[kind] = value
		}
	}
	if len(extra) > 0 {
		out["extra"] = extra
	}
	return l.send(out)
}

// unquote removes the quotes around the value of a cell that is a string, as the protocol shows it.
func unquote(value any) any {
	text, ok := value.(string)
	if n := len(text); ok && n >= 2 && (text[0] == '\'' || text[0] == '"') && text[n-1] == text[0] {
		return text[1 : n-1]
	}
	return value
}
