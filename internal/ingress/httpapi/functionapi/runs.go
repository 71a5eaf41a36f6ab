package functionapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

// errGone ends a stream whose reader has gone.
var errGone = errors.New("client has gone")

// traceparent is the form of the header that W3C Trace Context defines.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// serveInvoke is the route of invocations, whose status depends on the request.
func (a API) serveInvoke(c *Call) error {
	var req api.InvokeRequest
	if err := c.Decode(&req); err != nil {
		return err
	}
	out, err := a.invoke(c, req)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if req.Async {
		status = http.StatusAccepted
	}
	c.JSON(status, out)
	return nil
}

func (a API) invoke(c *Call, req api.InvokeRequest) (out api.FunctionRun, err error) {
	c.Action = "invoke" // programs repeat these
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	if key := c.R.Header.Get("Idempotency-Key"); key != "" && req.IdempotencyKey == "" {
		req.IdempotencyKey = key
		if err := req.Validate(); err != nil {
			return out, err
		}
	}
	if trace := c.R.Header.Get("Traceparent"); traceparent.MatchString(trace) {
		req.Trace = trace
	}
	if !req.Async {
		return s.Invoke(c.Context(), c.Principal, fn, req)
	}
	jobs, err := a.jobs()
	if err != nil {
		return out, err
	}
	return jobs.Submit(c.Context(), c.Principal, fn, req)
}

func (a API) record(c *Call, req api.RecordRunRequest) (out api.FunctionRun, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	return s.RecordRun(c.Context(), c.Principal, fn, req)
}

func (a API) runs(c *Call) ([]api.FunctionRun, error) {
	s, fn, err := a.on(c)
	if err != nil {
		return nil, err
	}
	q := c.R.URL.Query()
	f := api.RunFilter{Status: api.RunStatus(q.Get("status"))}
	switch f.Status {
	case "", api.RunQueued, api.RunRunning, api.RunSuccess, api.RunError, api.RunTimeout, api.RunCanceled:
	default:
		return nil, api.Errorf(api.Invalid, "status: %.60q is not a status of a run: use queued, running, success, "+
			"error, timeout or canceled", string(f.Status)).With("field", "status")
	}
	if f.Version, err = number(c, "version", 1, 1<<53, 0); err != nil {
		return nil, err
	}
	limit, err := number(c, "limit", 1, 1000, 100)
	if err != nil {
		return nil, err
	}
	f.Limit = int(limit)
	if before := q.Get("before"); before != "" {
		if f.Before, err = api.ParseInvocationID(before); err != nil {
			return nil, err
		}
	}
	all, err := s.Runs(c.Context(), c.Principal, fn, f)
	return some(all), err
}

func (a API) run(c *Call) (out api.FunctionRun, err error) {
	s, fn, err := a.on(c)
	if err != nil {
		return out, err
	}
	id, err := api.ParseInvocationID(c.R.PathValue("run"))
	if err != nil {
		return out, err
	}
	return s.GetRun(c.Context(), c.Principal, fn, id)
}

func (a API) cancel(c *Call) (out api.FunctionRun, err error) {
	s, err := a.jobs()
	if err != nil {
		return out, err
	}
	fn, err := functionIn(c)
	if err != nil {
		return out, err
	}
	id, err := api.ParseInvocationID(c.R.PathValue("run"))
	if err != nil {
		return out, err
	}
	return s.Cancel(c.Context(), c.Principal, fn, id)
}

// logs sends the last runs, and with follow those that end from now on.
func (a API) logs(c *Call) error {
	s, fn, err := a.on(c)
	if err != nil {
		return err
	}
	last, err := number(c, "limit", 0, 1000, 20)
	if err != nil {
		return err
	}
	// Access to the function is checked before the stream begins, so that a refusal is an HTTP error.
	if _, err := s.Get(c.Context(), c.Principal, fn); err != nil {
		return err
	}
	follow := c.R.URL.Query().Get("follow")
	out := execstream.NewSSE(c.W)
	defer out.Close()
	send := func(run api.FunctionRun) error {
		if out.ID(string(run.ID), "run", run) != nil {
			return errGone
		}
		return nil
	}
	if follow == "1" || follow == "true" {
		err = s.FollowRuns(c.Context(), c.Principal, fn, int(last), send)
	} else if last > 0 {
		err = lastRuns(c, s, fn, int(last), send)
	}
	end(c, out, err)
	return nil
}

// lastRuns yields the last runs, oldest first.
func lastRuns(c *Call, s Functions, fn string, last int, yield func(api.FunctionRun) error) error {
	all, err := s.Runs(c.Context(), c.Principal, fn, api.RunFilter{Limit: last})
	if err != nil {
		return err
	}
	for _, run := range slices.Backward(all) {
		if err := yield(run); err != nil {
			return err
		}
	}
	return nil
}

// end sends what a stream ended with.
func end(c *Call, out *execstream.SSE, err error) {
	switch {
	case err == nil:
		_ = out.Raw("done", "end") // the client may have disconnected
	case !errors.Is(err, errGone) && c.Context().Err() == nil:
		_ = out.Event("error", api.AsError(err)) // the client may have disconnected
	}
}

// mapInputs invokes a function for many inputs, and sends a line for each run that has ended.
func (a API) mapInputs(c *Call) error {
	var req api.MapRequest
	if err := c.Decode(&req); err != nil {
		return err
	}
	jobs, err := a.jobs()
	if err != nil {
		return err
	}
	fn, err := functionIn(c)
	if err != nil {
		return err
	}
	c.Action = "map"
	out := &progress{c: c}
	defer out.close()
	err = jobs.Map(c.Context(), c.Principal, fn, req, out.send)
	switch {
	case err == nil || errors.Is(err, errGone) || c.Context().Err() != nil:
		return nil
	case !out.begun:
		return err
	}
	out.last.Index, out.last.Run, out.last.Error = nil, nil, api.AsError(err)
	_ = out.send(out.last) // the client may have disconnected
	return nil
}

// progress sends lines, or events if the client asks for these. The response begins with the first one, so that an
// earlier error is an HTTP error.
type progress struct {
	c     *Call
	begun bool
	last  api.MapProgress
	sse   *execstream.SSE
}

func (p *progress) send(one api.MapProgress) error {
	p.last = one
	if !p.begun {
		p.begun = true
		if strings.Contains(p.c.R.Header.Get("Accept"), sse) {
			p.sse = execstream.NewSSE(p.c.W)
		} else {
			p.c.W.Header().Set("Content-Type", ndjson)
			p.c.W.Header().Set("Cache-Control", "no-store")
			p.c.W.Header().Set("X-Accel-Buffering", "no")
		}
	}
	if p.sse != nil {
		if p.sse.Event("progress", one) != nil {
			return errGone
		}
		return nil
	}
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	if _, err := p.c.W.Write(append(line, '\n')); err != nil {
		return errGone
	}
	if http.NewResponseController(p.c.W).Flush() != nil {
		return errGone
	}
	return nil
}

func (p *progress) close() {
	if p.sse != nil {
		p.sse.Close()
	}
}
