package function_test

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
)

// code is what the stand-in for the runtime program understands as a handler.
type code struct {
	Name  string // of the code; a result has it
	Build string // error of the build
	Load  string // type of the failure to load
	Needs string // variable without which it cannot be loaded
}

func (c code) String() string {
	data, _ := json.Marshal(c) // strings can be encoded
	return string(data)
}

// event is what the stand-in's handler does.
type event struct {
	Do string // "": return an answer
}

// answer is the result of the stand-in's handler.
type answer struct {
	Code    string
	Loaded  map[string]string // variables when it was loaded
	Env     map[string]string
	Calls   int64 // since the machine was restored or woken
	Headers http.Header
	Event   json.RawMessage
}

// runtime is a stand-in for the program pandastack-runtime.
type runtime struct {
	entered chan string   // the event of each handler that waits
	release chan struct{} // lets one of them go on
	gone    chan struct{} // one whose machine or caller has gone
}

func newRuntime() *runtime {
	return &runtime{entered: make(chan string, 100), release: make(chan struct{}), gone: make(chan struct{}, 100)}
}

// state is where the program keeps in its machine what it was started with.
const state = "/run/pandastack/serve.json"

func (rt *runtime) run(ctx context.Context, e *hosttest.Exec) int {
	var err error
	if e.Args[0] == "build" {
		err = rt.build(ctx, e)
	} else {
		err = rt.serve(ctx, e)
	}
	if err != nil {
		e.Print(guestapi.StreamStderr, err.Error()+"\n")
		return 1
	}
	return 0
}

func (rt *runtime) build(ctx context.Context, e *hosttest.Exec) error {
	var req fnruntime.BuildRequest
	if err := json.NewDecoder(e.Stdin).Decode(&req); err != nil {
		return err
	}
	say := func(v fnruntime.Event) {
		data, _ := json.Marshal(v) // an event can be encoded
		e.Print(guestapi.StreamStdout, string(data)+"\n")
	}
	if req.Install {
		say(fnruntime.Event{Kind: fnruntime.KindLog, Line: "installed"})
		say(fnruntime.Event{Kind: fnruntime.KindResult, Result: &fnruntime.Result{Manager: "pip"}})
		return nil
	}
	c, err := load(ctx, e.Files)
	switch {
	case err != nil:
		return err
	case c.Build != "":
		say(fnruntime.Event{Kind: fnruntime.KindError, Error: c.Build})
	default:
		say(fnruntime.Event{Kind: fnruntime.KindLog, Line: "unpacked " + c.Name})
		say(fnruntime.Event{Kind: fnruntime.KindResult, Result: &fnruntime.Result{}})
	}
	return nil
}

// load reads the code from the bundle.
func load(ctx context.Context, files guestapi.FileSystem) (c code, err error) {
	_, bundle, err := files.Read(ctx, fnruntime.Bundle, "root", 0, -1)
	if err != nil {
		return c, err
	}
	content, archive, err := fnruntime.OpenBundle(bundle)
	if err != nil {
		return c, err
	}
	if !archive {
		return c, json.NewDecoder(content).Decode(&c)
	}
	return c, fnruntime.EachFile(content, func(name string, _ *tar.Header, in io.Reader) error {
		if name != "handler.py" {
			return nil
		}
		return json.NewDecoder(in).Decode(&c)
	})
}

// process is the stand-in in one machine.
type process struct {
	*runtime
	code  code
	serve fnruntime.Serve
	calls atomic.Int64

	mu  sync.Mutex
	env map[string]string
}

func (rt *runtime) serve(ctx context.Context, e *hosttest.Exec) error {
	p := &process{runtime: rt}
	_, kept, err := e.Files.Read(ctx, state, "root", 0, -1)
	if errors.Is(err, guestapi.ErrNotFound) {
		var data []byte
		if data, err = io.ReadAll(e.Stdin); err != nil {
			return err
		}
		kept = io.NopCloser(strings.NewReader(string(data)))
		opt := guestapi.WriteOptions{User: "root", Size: -1}
		_, err = e.Files.Write(ctx, state, opt, strings.NewReader(string(data)))
	}
	if err != nil {
		return err
	}
	if err := json.NewDecoder(kept).Decode(&p.serve); err != nil {
		return err
	}
	p.env = p.serve.Env
	if p.code, err = load(ctx, e.Files); err != nil {
		return err
	}
	l, err := e.Listen(fnruntime.Port)
	if err != nil {
		return err
	}
	e.Print(guestapi.StreamStdout, "serving "+p.code.Name+"\n")
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() }) // the machine is gone
	_ = server.Serve(l)                                   // it ends with the process
	return nil
}

// failure is why the handler cannot be loaded, or nil.
func (p *process) failure() *fnruntime.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.code.Load != "":
		return &fnruntime.Failure{Type: p.code.Load, Message: "it cannot be loaded", Stack: "first\nsecond\n"}
	case p.code.Needs != "" && p.env[p.code.Needs] == "":
		return &fnruntime.Failure{Type: "KeyError", Message: p.code.Needs}
	}
	return nil
}

func (p *process) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case fnruntime.PathReady, fnruntime.PathRestored:
		p.control(w, r)
	case fnruntime.PathEvent:
		p.event(w, r)
	default:
		p.request(w, r)
	}
}

func (p *process) control(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == fnruntime.PathRestored {
		var in fnruntime.Restored
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		p.mu.Lock()
		p.env = in.Env
		p.mu.Unlock()
	}
	if f := p.failure(); f != nil {
		w.WriteHeader(http.StatusFailedDependency)
		write(w, f)
		return
	}
	w.Header().Set(fnruntime.HeaderStyle, "event")
	w.WriteHeader(http.StatusNoContent)
}

func write(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) } // the caller may have left

// end writes a summary as the trailer of a response.
func end(w http.ResponseWriter, s fnruntime.Summary) {
	data, _ := json.Marshal(s) // a summary can be encoded
	w.Header().Set(fnruntime.TrailerSummary, base64.StdEncoding.EncodeToString(data))
}

// wait waits until the test lets it go on. It reports false if the machine or the caller is gone.
func (p *process) wait(r *http.Request, what string) bool {
	p.entered <- what
	select {
	case <-p.release:
		return true
	case <-r.Context().Done():
		p.gone <- struct{}{}
		return false
	}
}

func (p *process) event(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", fnruntime.TrailerSummary)
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var e event
	_ = json.Unmarshal(data, &e) // an event may be anything
	n := p.calls.Add(1)
	sum := fnruntime.Summary{Style: "event", Stdout: "out of " + e.Do + "\n", Stderr: "err\n", Micros: 1500,
		Memory: 3 << 20}
	fail := func(status int, f fnruntime.Failure) {
		w.WriteHeader(status)
		write(w, f)
		sum.Failure = &f
	}
	switch e.Do {
	case "raise":
		fail(http.StatusInternalServerError, fnruntime.Failure{Type: "ValueError", Message: "no", Stack: "line 1\n"})
	case "overtime":
		sum.TimedOut = true
		fail(http.StatusGatewayTimeout, fnruntime.Failure{Type: "Timeout", Message: "it took too long"})
	case "text":
		_, _ = io.WriteString(w, "no JSON") // the caller may have left
	case "big":
		_, _ = io.WriteString(w, `"`+strings.Repeat("x", 1<<20)+`"`)
	case "hang":
		p.entered <- "hang"
		<-r.Context().Done()
		p.gone <- struct{}{}
		return
	case "wait":
		if !p.wait(r, "wait") {
			return
		}
		fallthrough
	default:
		p.mu.Lock()
		env := p.env
		p.mu.Unlock()
		write(w, answer{Code: p.code.Name, Loaded: p.serve.Env, Env: env, Calls: n, Headers: r.Header, Event: data})
	}
	end(w, sum)
}

func (p *process) request(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", fnruntime.TrailerSummary)
	sum := fnruntime.Summary{Style: "fetch", Stdout: r.Method + " " + r.URL.Path + "\n"}
	flush := http.NewResponseController(w)
	switch r.URL.Path {
	case "/stream":
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "first ") // the caller may have left
		_ = flush.Flush()
		if !p.wait(r, "stream") {
			return
		}
		_, _ = io.WriteString(w, "second")
	case "/raise":
		f := fnruntime.Failure{Type: "ValueError", Message: "no"}
		w.Header().Set(fnruntime.HeaderFailure, f.Type)
		w.WriteHeader(http.StatusInternalServerError)
		write(w, f)
		sum.Failure = &f
	case "/late":
		_, _ = io.WriteString(w, "part")
		_ = flush.Flush()
		sum.Failure = &fnruntime.Failure{Type: "ValueError", Message: "too late"}
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Pandastack-Secret", "is not for callers")
		w.Header().Set("Content-Type", "application/json")
		write(w, map[string]any{"method": r.Method, "uri": r.URL.RequestURI(), "host": r.Host, "body": string(body),
			"header": r.Header})
	}
	end(w, sum)
}
