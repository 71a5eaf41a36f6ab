package function

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
)

// call is one call of the handler.
type call struct {
	number    uint32
	id        string
	attempt   int
	deadline  time.Time // zero: none
	scheduled string
	queue     string
	trace     string
	isRequest bool // of HTTP, for the handler, and no event
	rehearsal bool // the handler itself is not called
	out       *capture
	target    atomic.Pointer[process] // that the time limit ends
	memory    int64                   // peak, of a process for this call alone
}

// handler is a loaded handler, or one that is being loaded.
type handler interface {
	// ready waits until the handler is loaded, and returns its style, or why it cannot be loaded.
	ready(ctx context.Context) (string, *failure)
	// event makes a call with an event of a kind, and request one with a request. Both return how it ended.
	event(ctx context.Context, c *call, kind string, event []byte, to reply) (*failure, *int)
	request(ctx context.Context, c *call, r *http.Request, body *requestBody, to reply) (*failure, *int)
	restored(ctx context.Context, env map[string]string) *failure
	proc() *process
}

// Server has the handler of a function and calls it for requests; see package fnruntime.
type Server struct {
	place   Place
	cfg     fnruntime.Serve
	stdout  io.Writer
	stderr  io.Writer
	numbers atomic.Uint32

	mu        sync.Mutex
	env       map[string]string
	handler   handler
	stamp     string // of the files that handler was loaded from
	starts    int
	all       []handler // that may not have ended
	summaries summaries
}

// NewServer returns a server that begins to load the handler. What the handler prints outside of calls goes to stdout
// and stderr.
func NewServer(
	ctx context.Context, place Place, cfg fnruntime.Serve, stdout, stderr io.Writer,
) (*Server, error) {
	if err := place.account(); err != nil {
		return nil, fmt.Errorf("account of the handler: %w", err)
	}
	for _, dir := range []string{filepath.Dir(place.Socket), place.State} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	s := &Server{place: place, cfg: cfg, stdout: stdout, stderr: stderr, env: cfg.Env}
	s.current(ctx, false)
	return s, nil
}

// Close ends the handler.
func (s *Server) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.all {
		h.proc().kill()
		<-h.proc().exited
	}
}

// serve serves requests until ctx ends.
func (p Place) serve(ctx context.Context, cfg fnruntime.Serve, stdout, stderr io.Writer) error {
	listener, err := net.Listen("tcp", p.Address)
	if err != nil {
		return err
	}
	s, err := NewServer(ctx, p, cfg, stdout, stderr)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer s.Close()
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: time.Minute, MaxHeaderBytes: 512 << 10, Protocols: new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener) }()
	select {
	case err = <-failed:
	case <-ctx.Done():
		err = srv.Close()
		<-failed
	}
	return err
}

// current returns the handler, loaded if it was not, or if its process has ended and again is set.
func (s *Server) current(ctx context.Context, again bool) (handler, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cfg.Reload {
		if stamp := stampOf(s.place.Code); stamp != s.stamp {
			s.stamp, again = stamp, true
			if s.handler != nil {
				s.handler.proc().retire(nil)
			}
		}
	}
	if s.handler != nil && (!again || s.handler.proc().usable()) {
		return s.handler, nil
	}
	s.starts++
	h, f := s.open(context.WithoutCancel(ctx), s.starts)
	if f != nil {
		return nil, f
	}
	left := []handler{h}
	for _, old := range s.all {
		if !old.proc().ended() {
			left = append(left, old)
		}
	}
	s.handler, s.all = h, left
	return h, nil
}

// print takes output of the handler outside of calls.
func (s *Server) print(stream int, p []byte) {
	to := s.stdout
	if stream == streamErr {
		to = s.stderr
	}
	_, _ = to.Write(p) // it has no other place
}

// ServeHTTP serves the requests of package fnruntime.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil
	switch {
	case r.Header.Get(fnruntime.HeaderRequest) != "":
		s.invoke(w, r)
	case r.URL.Path == fnruntime.PathReady:
		s.ready(w, r)
	case r.URL.Path == fnruntime.PathRestored:
		s.restored(w, r)
	case strings.HasPrefix(r.URL.Path, fnruntime.PathSummary):
		data := s.summaries.take(strings.TrimPrefix(r.URL.Path, fnruntime.PathSummary))
		if data == nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(data) // a caller that is gone needs nothing
	default:
		s.invoke(w, r)
	}
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	h, f := s.current(r.Context(), false)
	style := ""
	if f == nil {
		style, f = h.ready(r.Context())
	}
	if f != nil {
		writeFailure(w, http.StatusFailedDependency, f)
		return
	}
	w.Header().Set(fnruntime.HeaderStyle, style)
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) restored(w http.ResponseWriter, r *http.Request) {
	var in fnruntime.Restored
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in); err != nil {
		http.Error(w, "the body is no fnruntime.Restored: "+err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	same := maps.Equal(s.env, in.Env)
	s.env = in.Env
	s.mu.Unlock()
	h, f := s.current(r.Context(), true)
	if f == nil && !same && s.cfg.Runtime == "provided" { // its variables are those that it began with
		h.proc().retire(nil)
		h, f = s.current(r.Context(), true)
	}
	if f == nil {
		_, f = h.ready(r.Context())
	}
	if f == nil {
		f = h.restored(r.Context(), in.Env)
	}
	if f != nil {
		writeFailure(w, http.StatusFailedDependency, f)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func writeFailure(w http.ResponseWriter, status int, f *failure) {
	data, _ := json.Marshal(f) // strings alone
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set(fnruntime.HeaderFailure, f.Type)
	w.WriteHeader(status)
	_, _ = w.Write(data) // a caller that is gone needs nothing
}

// invoke calls the handler for a request.
func (s *Server) invoke(w http.ResponseWriter, r *http.Request) {
	c, err := s.newCall(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	rc := http.NewResponseController(w)
	w.Header().Set("Trailer", fnruntime.TrailerSummary)
	out := &responder{w: w, rc: rc}
	o := s.run(r, c, out)
	if o.Failure != nil && !out.begun {
		status := http.StatusInternalServerError
		if o.TimedOut {
			status = http.StatusGatewayTimeout
		}
		writeFailure(w, status, o.Failure)
	}
	w.Header().Set(fnruntime.TrailerSummary, s.summaries.put(c.id, o))
}

// newCall reads the headers of a call.
func (s *Server) newCall(r *http.Request) (*call, error) {
	h := r.Header
	c := &call{
		number: s.numbers.Add(1), id: h.Get(fnruntime.HeaderInvocation), attempt: 1, out: newCapture(),
		scheduled: h.Get(fnruntime.HeaderScheduled), queue: h.Get(fnruntime.HeaderQueue), trace: h.Get("Traceparent"),
	}
	c.rehearsal = r.URL.Path == fnruntime.PathRehearse
	c.isRequest = r.URL.Path != fnruntime.PathEvent && !c.rehearsal
	if h.Get(fnruntime.HeaderRequest) != "" {
		h.Del(fnruntime.HeaderRequest) // the handler gets what its caller has sent
		c.isRequest, c.rehearsal = true, false
	}
	if c.id == "" {
		c.id = "local-" + strconv.FormatUint(uint64(c.number), 10)
	}
	if v := h.Get(fnruntime.HeaderAttempt); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q is no number of an attempt", fnruntime.HeaderAttempt, v)
		}
		c.attempt = n
	}
	if v := h.Get(fnruntime.HeaderDeadline); v != "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %q are no milliseconds", fnruntime.HeaderDeadline, v)
		}
		c.deadline = time.Now().Add(time.Duration(n) * time.Millisecond)
	}
	return c, nil
}

// remaining returns the milliseconds that a call has left; 0: no limit.
func (c *call) remaining() int64 {
	if c.deadline.IsZero() {
		return 0
	}
	return max(1, time.Until(c.deadline).Milliseconds())
}

// errDeadline is the cause of the end of a call's context.
var errDeadline = errors.New("the time of the call ran out")

// run makes one call and says how it went.
func (s *Server) run(r *http.Request, c *call, to *responder) fnruntime.Summary {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	var sum fnruntime.Summary
	h, f := s.acquire(ctx, c)
	if f == nil {
		p := h.proc()
		c.target.Store(p)
		stop := c.limit(cancel)
		began := time.Now()
		sum.Style, _ = h.ready(ctx)
		sum.Failure, sum.ExitCode = s.dispatch(ctx, h, c, r, to)
		sum.Micros = time.Since(began).Microseconds()
		stop()
		exited := sum.Failure != nil && sum.Failure.Type == typeExited
		if context.Cause(ctx) == errDeadline || exited && c.target.Load().wasWarned() {
			sum.TimedOut, sum.Failure = true, timedOut()
			c.target.Load().retire(c)
		}
		p.settle()
		sum.Memory = max(c.memory, p.peak())
		p.remove(c)
	} else {
		sum.Failure, sum.TimedOut = f, f.Type == typeTimeout
	}
	sum.Stdout, sum.Stderr, sum.Truncated = c.out.text()
	return sum
}

// limit ends a call at its deadline, and asks its process to end somewhat earlier. stop ends the limit.
func (c *call) limit(cancel context.CancelCauseFunc) (stop func()) {
	if c.deadline.IsZero() {
		return func() {}
	}
	left := time.Until(c.deadline)
	warning := time.AfterFunc(left-min(time.Second, left/10), func() { c.target.Load().terminate(c) })
	end := time.AfterFunc(left, func() {
		cancel(errDeadline)
		c.target.Load().retire(c)
	})
	return func() {
		warning.Stop()
		end.Stop()
	}
}

// acquire returns the loaded handler with the call registered at its process.
func (s *Server) acquire(ctx context.Context, c *call) (handler, *failure) {
	if !c.deadline.IsZero() {
		limited, cancel := context.WithDeadlineCause(ctx, c.deadline, errDeadline)
		defer cancel()
		ctx = limited
	}
	for range 3 {
		h, f := s.current(ctx, true)
		if f != nil {
			return nil, f
		}
		if _, f = h.ready(ctx); f != nil {
			if ctx.Err() != nil {
				h.proc().kill()
			}
			return nil, f
		}
		if h.proc().add(c) {
			return h, nil
		}
	}
	return nil, failed(typeExited, "the handler's process ends again and again")
}

// dispatch makes the call that a request asks for.
func (s *Server) dispatch(
	ctx context.Context, h handler, c *call, r *http.Request, to *responder,
) (*failure, *int) {
	body := &requestBody{ReadCloser: r.Body, rc: to.rc}
	if c.isRequest {
		return h.request(ctx, c, r, body, to)
	}
	event, err := io.ReadAll(io.LimitReader(body, maxEvent+1))
	switch {
	case err != nil:
		return failed(typeEvent, "the event cannot be read: %s", err), nil
	case len(event) > maxEvent:
		return failed(typeEvent, "the event has more than %d MiB", maxEvent>>20), nil
	case len(strings.TrimSpace(string(event))) == 0:
		event = []byte("null")
	case !json.Valid(event):
		return failed(typeEvent, "the event is not JSON"), nil
	}
	kind := callEvent
	switch {
	case c.scheduled != "":
		kind = callScheduled
	case c.queue != "":
		kind = callQueue
	}
	return h.event(ctx, c, kind, event, to)
}

// maxEvent bounds events in memory. The control plane has a smaller bound.
const maxEvent = 32 << 20

// requestBody is a body that Close lets go of while another goroutine reads it.
type requestBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	ended atomic.Bool
}

// duplex allows reads after the response has begun.
func (b *requestBody) duplex() error { return b.rc.EnableFullDuplex() }

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

func (b *requestBody) Close() error {
	if b.ended.Load() {
		return nil
	}
	return b.rc.SetReadDeadline(time.Unix(1, 0))
}

// responder writes what a handler responds with.
type responder struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

// hopHeaders belong to a connection, and are not the handler's to set.
var hopHeaders = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length",
}

func (o *responder) head(in head) error {
	if in.Status < 200 || in.Status > 599 {
		return fmt.Errorf("%w: status %d", errResponse, in.Status)
	}
	h := http.Header{}
	for _, pair := range in.Headers {
		if !validHeader(pair[0], pair[1]) {
			return fmt.Errorf("%w: header %.100q", errResponse, pair[0])
		}
		h.Add(pair[0], pair[1])
	}
	if length := h.Get("Content-Length"); length != "" {
		h.Set(fnruntime.HeaderLength, length)
	}
	for _, name := range hopHeaders {
		h.Del(name)
	}
	if _, set := h["Content-Type"]; !set {
		h["Content-Type"] = nil // or else the server guesses one
	}
	maps.Copy(o.w.Header(), h)
	o.begun = true
	o.w.WriteHeader(in.Status)
	return nil
}

func (o *responder) data(p []byte, more bool) error {
	if !o.begun { // the result of an event
		o.begun = true
		o.w.Header().Set("Content-Type", "application/json")
	}
	_, err := o.w.Write(p)
	if errors.Is(err, http.ErrBodyNotAllowed) {
		return nil
	}
	if err == nil && !more {
		err = o.rc.Flush()
	}
	if err != nil {
		return errCaller
	}
	return nil
}

// summaries keeps what did not fit into trailers until it is fetched.
type summaries struct {
	mu   sync.Mutex
	ids  []string // the oldest first
	data map[string][]byte
}

const maxSummaries = 32

// put returns the trailer for a summary, and keeps the summary if its response may have no trailer, or not all of it.
func (s *summaries) put(id string, sum fnruntime.Summary) string {
	sum.Failure = bound(sum.Failure)
	data, _ := json.Marshal(sum) // strings and numbers alone
	for len(data) > fnruntime.MaxSummary {
		sum.Stdout, sum.Stderr, sum.Truncated = sum.Stdout[:len(sum.Stdout)/2], sum.Stderr[:len(sum.Stderr)/2], true
		data, _ = json.Marshal(sum)
	}
	s.mu.Lock()
	if s.data == nil {
		s.data = map[string][]byte{}
	}
	if _, known := s.data[id]; !known {
		s.ids = append(s.ids, id)
	}
	s.data[id] = data
	if len(s.ids) > maxSummaries {
		delete(s.data, s.ids[0])
		s.ids = s.ids[1:]
	}
	s.mu.Unlock()
	if base64.StdEncoding.EncodedLen(len(data)) > fnruntime.MaxTrailer {
		sum.Stdout, sum.Stderr, sum.More = "", "", true
		if f := sum.Failure; f != nil {
			sum.Failure = &failure{Type: f.Type, Message: f.Message[:min(len(f.Message), 256)]}
		}
		data, _ = json.Marshal(sum)
	}
	return base64.StdEncoding.EncodeToString(data)
}

// take returns a summary once; nil if there is none.
func (s *summaries) take(id string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	data := s.data[id]
	delete(s.data, id)
	s.ids = slices.DeleteFunc(s.ids, func(x string) bool { return x == id })
	return data
}
