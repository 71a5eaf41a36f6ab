package function

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The Runtime API of AWS Lambda.
const (
	apiPrefix  = "/2018-06-01/runtime/"
	maxPrelude = 64 << 10 // bytes of the head of a response that is streamed
)

// lambda is a program that fetches its events from the Runtime API. It handles one at a time.
type lambda struct {
	*process
	name    string
	srv     *http.Server
	served  chan struct{}
	waiting chan *apiCall // those that the program may fetch

	mu      sync.Mutex
	first   chan struct{} // closed when the program asks for its first event, or says that it cannot begin
	begun   bool
	init    *failure
	running map[string]*apiCall
}

// apiCall is an event for the program. Its results are set once, before ended is closed.
type apiCall struct {
	*call
	event   []byte
	to      reply
	request bool // the response to a request
	ended   chan struct{}
	failure *failure
}

// openLambda starts a program.
func (s *Server) openLambda(file string) (handler, *failure) {
	if info, err := os.Stat(file); err != nil || info.Mode()&0o111 == 0 {
		return nil, failed(typeNotFound, "%s cannot be executed: set its mode to 755 in the bundle", file)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, failed(typeUnsupported, "listen for the Runtime API: %s", err)
	}
	l := &lambda{
		name: s.cfg.Name, served: make(chan struct{}), waiting: make(chan *apiCall), first: make(chan struct{}),
		running: map[string]*apiCall{},
	}
	l.srv = &http.Server{Handler: l, ReadHeaderTimeout: time.Minute}
	env := s.environ(
		"AWS_LAMBDA_RUNTIME_API="+listener.Addr().String(), "AWS_LAMBDA_FUNCTION_NAME="+s.cfg.Name,
		"AWS_LAMBDA_FUNCTION_VERSION="+strconv.FormatInt(s.cfg.Version, 10),
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE="+strconv.Itoa(s.cfg.MemoryMB), "_HANDLER="+s.cfg.Entrypoint,
		"LAMBDA_TASK_ROOT="+s.place.Code, "AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
	)
	l.process, err = startProcess(s.place, command{argv: []string{file}, env: env}, false, s.print)
	if err != nil {
		return nil, failed(typeUnsupported, "%s", errors.Join(err, listener.Close()))
	}
	go func() {
		defer close(l.served)
		_ = l.srv.Serve(listener) // until the process has ended
	}()
	go func() {
		<-l.exited
		_ = l.srv.Close() // its connections are of a process that is gone
		<-l.served
	}()
	return l, nil
}

func (l *lambda) proc() *process { return l.process }

func (l *lambda) ready(ctx context.Context) (string, *failure) {
	select {
	case <-l.first:
	case <-l.exited:
	case <-ctx.Done():
		return "", timedOut()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.init != nil:
		return "", l.init
	case !l.begun:
		f, _ := exitFailure(l.state, l.process.memory)
		return "", f
	}
	return "lambda", nil
}

// restored does nothing: a program with other variables is started again, and what it has of random numbers is its own.
func (l *lambda) restored(context.Context, map[string]string) *failure { return nil }

func (l *lambda) event(ctx context.Context, c *call, _ string, event []byte, to reply) (*failure, *int) {
	if c.rehearsal { // the program cannot tell it from an event
		_ = to.data(event, true) // a caller that is gone needs no result
		return nil, nil
	}
	return l.do(ctx, &apiCall{call: c, event: event, to: to, ended: make(chan struct{})})
}

func (l *lambda) request(
	ctx context.Context, c *call, r *http.Request, body *requestBody, to reply,
) (*failure, *int) {
	event, f := requestEvent(c, r, body)
	if f != nil {
		return f, nil
	}
	return l.do(ctx, &apiCall{call: c, event: event, to: to, request: true, ended: make(chan struct{})})
}

// do gives an event to the program and waits for its end.
func (l *lambda) do(ctx context.Context, c *apiCall) (*failure, *int) {
	l.mu.Lock()
	l.running[c.id] = c
	l.mu.Unlock()
	var f *failure
	var code *int
	waiting := l.waiting
	for {
		select {
		case waiting <- c:
			waiting = nil
			continue
		case <-c.ended:
			return c.failure, nil
		case <-ctx.Done():
			f = timedOut()
		case <-l.exited:
			f, code = exitFailure(l.state, l.process.memory)
		}
		break
	}
	l.mu.Lock()
	_, unresponded := l.running[c.id]
	delete(l.running, c.id)
	l.mu.Unlock()
	if unresponded {
		return f, code
	}
	<-c.ended // its response comes; the end of the process or of the caller ends it
	return c.failure, nil
}

// ServeHTTP serves the Runtime API.
func (l *lambda) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, apiPrefix)
	id, what, found := strings.Cut(strings.TrimPrefix(path, "invocation/"), "/")
	switch {
	case ok && path == "invocation/next" && r.Method == http.MethodGet:
		l.next(w, r)
	case ok && path == "init/error" && r.Method == http.MethodPost:
		f := apiError(r)
		l.mu.Lock()
		l.start(f)
		l.mu.Unlock()
		accepted(w)
	case ok && found && r.Method == http.MethodPost && (what == "response" || what == "error"):
		l.mu.Lock()
		c := l.running[id]
		delete(l.running, id)
		l.mu.Unlock()
		if c == nil {
			apiRefuse(w, http.StatusBadRequest, "InvalidRequestID", "the invocation does not wait for a response")
			return
		}
		if what == "error" {
			c.failure = apiError(r)
		} else {
			c.failure = c.respond(r)
		}
		close(c.ended)
		accepted(w)
	default:
		apiRefuse(w, http.StatusNotFound, "NotFound", "the Runtime API has no such call")
	}
}

// start notes that the program has begun, or failed to. The caller holds l.mu.
func (l *lambda) start(f *failure) {
	if !l.begun && l.init == nil {
		l.begun, l.init = f == nil, f
		close(l.first)
	}
}

func (l *lambda) next(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	l.start(nil)
	l.mu.Unlock()
	var c *apiCall
	select {
	case c = <-l.waiting:
	case <-r.Context().Done():
		return
	}
	deadline := c.deadline
	if deadline.IsZero() {
		deadline = time.Now().Add(24 * time.Hour)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Lambda-Runtime-Aws-Request-Id", c.id)
	h.Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(deadline.UnixMilli(), 10))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:pandastack:function:"+l.name)
	if trace := traceID(c.trace); trace != "" {
		h.Set("Lambda-Runtime-Trace-Id", trace)
	}
	_, _ = w.Write(c.event) // a program that is gone ends the call
}

// traceID writes a traceparent as a trace header of AWS.
func traceID(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return ""
	}
	sampled := "0"
	if strings.HasSuffix(parts[3], "1") {
		sampled = "1"
	}
	return fmt.Sprintf("Root=1-%s-%s;Parent=%s;Sampled=%s", parts[1][:8], parts[1][8:], parts[2], sampled)
}

func accepted(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"status":"OK"}`) // its status says all
}

func apiRefuse(w http.ResponseWriter, status int, kind, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"errorType": kind, "errorMessage": message}) // as above
}

// apiError reads an error of the program.
func apiError(r *http.Request) *failure {
	var e struct {
		Type    string            `json:"errorType"`
		Message string            `json:"errorMessage"`
		Stack   []json.RawMessage `json:"stackTrace"`
	}
	f := &failure{Type: r.Header.Get("Lambda-Runtime-Function-Error-Type")}
	data, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil && json.Unmarshal(data, &e) == nil {
		f.Message = e.Message
		if e.Type != "" {
			f.Type = e.Type
		}
		var lines []string
		for _, line := range e.Stack {
			lines = append(lines, jsonText(line))
		}
		f.Stack = strings.Join(lines, "\n")
	}
	if f.Type == "" {
		f.Type = "Error"
	}
	return bound(f)
}

// respond passes the response of the program on.
func (c *apiCall) respond(r *http.Request) *failure {
	body := bufio.NewReaderSize(r.Body, maxPrelude)
	if strings.EqualFold(r.Header.Get("Lambda-Runtime-Function-Response-Mode"), "streaming") {
		return c.stream(r, body)
	}
	data, err := io.ReadAll(io.LimitReader(body, maxEvent+1))
	switch {
	case err != nil:
		return failed(typeResult, "the response cannot be read: %s", err)
	case len(data) > maxEvent:
		return failed(typeResult, "the response has more than %d MiB", maxEvent>>20)
	case len(bytes.TrimSpace(data)) == 0:
		data = []byte("null")
	case !json.Valid(data):
		return failed(typeResult, "the program's response is not JSON")
	}
	if c.request {
		err = respond(data, c.to)
	} else {
		err = c.to.data(data, true)
	}
	if errors.Is(err, errResponse) {
		return failed(typeResponse, "%s", err)
	}
	return nil
}

// stream passes a response on while it comes. That to a request has its head before eight zero bytes.
func (c *apiCall) stream(r *http.Request, body *bufio.Reader) *failure {
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/vnd.awslambda.http-integration-response") {
		var prelude []byte
		end := make([]byte, 8)
		for !bytes.HasSuffix(prelude, end) {
			b, err := body.ReadByte()
			if err != nil || len(prelude) == maxPrelude {
				return failed(typeResponse, "the head of the streamed response does not end")
			}
			prelude = append(prelude, b)
		}
		prelude = bytes.TrimSuffix(prelude, end)
		var in urlResult
		if err := json.Unmarshal(prelude, &in); err != nil {
			return failed(typeResponse, "the head of the streamed response is not JSON")
		}
		if c.request {
			if in.Status == nil {
				ok := http.StatusOK
				in.Status = &ok
			}
			in.Body = nil
			empty, _ := json.Marshal(in) // it was decoded from JSON
			if err := respond(empty, c.to); err != nil {
				return failed(typeResponse, "%s", err)
			}
		}
	} else if c.request {
		h := head{Status: http.StatusOK, Headers: [][2]string{{"Content-Type", "application/octet-stream"}}}
		if err := c.to.head(h); err != nil {
			return failed(typeResponse, "%s", err)
		}
	}
	if !c.request { // a result is JSON as a whole
		return c.respond(&http.Request{Body: io.NopCloser(body), Header: http.Header{}})
	}
	buf := make([]byte, bodyPiece)
	for {
		n, err := body.Read(buf)
		if n > 0 && c.to.data(buf[:n], body.Buffered() > 0) != nil {
			return nil // the caller is gone
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return failed(typeResponse, "the streamed response broke off: %s", err)
		}
	}
	if kind := r.Trailer.Get("Lambda-Runtime-Function-Error-Type"); kind != "" {
		return bound(&failure{Type: kind, Message: "the streamed response ended with an error"})
	}
	return nil
}
