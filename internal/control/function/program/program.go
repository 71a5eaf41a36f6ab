// Package program speaks with the program pandastack-runtime in the machine of a function.
//
// The machine is not trusted: its responses are bounded, and what they say of themselves is checked.
package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/fnruntime"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// Summary and Failure are what the program says of an invocation.
type (
	Summary = fnruntime.Summary
	Failure = fnruntime.Failure
)

// grace is what the program has beyond the deadline to end the handler by itself.
const grace = 2 * time.Second

// Program is the program in one machine. Close it.
type Program struct {
	transport *http.Transport
}

// Open returns the program in a machine. It connects with the first request.
func Open(g guestapi.PortDialer) *Program {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := g.DialPort(ctx, fnruntime.Port)
		if err != nil {
			return nil, &UnreachableError{err}
		}
		return c, nil
	}
	return &Program{transport: &http.Transport{
		DialContext: dial, MaxResponseHeaderBytes: 256 << 10, MaxIdleConnsPerHost: 64,
		IdleConnTimeout: time.Minute, DisableCompression: true,
	}}
}

// Close closes connections that are idle.
func (p *Program) Close() { p.transport.CloseIdleConnections() }

// UnreachableError says that no connection to the program could be made, so that it received nothing.
type UnreachableError struct{ cause error }

// Error implements error.
func (e *UnreachableError) Error() string { return "the program cannot be reached: " + e.cause.Error() }

// Unwrap returns the cause.
func (e *UnreachableError) Unwrap() error { return e.cause }

// Failed is the error of a program that could not load the handler.
type Failed struct{ fnruntime.Failure }

// Error implements error.
func (f *Failed) Error() string { return f.Type + ": " + f.Message }

// request returns a request for the program.
func request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
}

// control sends a request that is not for the handler, whose response has no body unless it is a failure.
func (p *Program) control(ctx context.Context, method, path string, body any) (http.Header, error) {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(data)
	}
	r, err := request(ctx, method, path, in)
	if err != nil {
		return nil, err
	}
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, fnruntime.MaxSummary))
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusNoContent:
		return answer.Header, nil
	case answer.StatusCode == http.StatusFailedDependency:
		failure, err := fnruntime.DecodeFailure(data)
		if err != nil {
			return nil, err
		}
		return nil, &Failed{failure}
	}
	return nil, fmt.Errorf("%s %s: status %d", method, path, answer.StatusCode)
}

// interval is the time between two tries to reach a program that begins.
const interval = 50 * time.Millisecond

// Ready waits until the handler is loaded, and returns its style. The error is a *Failed if it cannot be loaded.
func (p *Program) Ready(ctx context.Context) (style string, err error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		head, err := p.control(ctx, http.MethodGet, fnruntime.PathReady, nil)
		if err == nil {
			return head.Get(fnruntime.HeaderStyle), nil
		}
		if !errors.Is(err, guestapi.ErrRefused) {
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Restored tells the program that its machine was restored.
func (p *Program) Restored(ctx context.Context, env map[string]string) error {
	_, err := p.control(ctx, http.MethodPost, fnruntime.PathRestored, fnruntime.Restored{Env: env})
	return err
}

// Call is an invocation.
type Call struct {
	Run       api.InvocationID
	Attempt   int
	Name      string // of the function
	Version   int64
	Deadline  time.Time
	Scheduled time.Time
	Queue     string
	Trace     string
	MaxResult int64 // bytes of a result that is not streamed
}

func (c *Call) head(h http.Header) {
	h.Set(fnruntime.HeaderInvocation, string(c.Run))
	h.Set(fnruntime.HeaderAttempt, strconv.Itoa(max(c.Attempt, 1)))
	h.Set(fnruntime.HeaderFunction, c.Name)
	h.Set(fnruntime.HeaderVersion, strconv.FormatInt(c.Version, 10))
	h.Set(fnruntime.HeaderDeadline, strconv.FormatInt(max(time.Until(c.Deadline).Milliseconds(), 1), 10))
	if !c.Scheduled.IsZero() {
		h.Set(fnruntime.HeaderScheduled, c.Scheduled.UTC().Format(time.RFC3339))
	}
	if c.Queue != "" {
		h.Set(fnruntime.HeaderQueue, c.Queue)
	}
	if c.Trace != "" {
		h.Set("Traceparent", c.Trace)
	}
}

// Result is how an invocation ended, as the program says.
type Result struct {
	Status  int    // of HTTP
	Body    []byte // of an event; nil if the handler failed
	Failure *fnruntime.Failure
	Summary fnruntime.Summary
}

// ErrOvertime says that the program did not end an invocation in time.
var ErrOvertime = errors.New("the machine did not end the invocation in time")

// bound returns a context that ends when the program has had its time.
func (c *Call) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, c.Deadline.Add(grace), ErrOvertime)
}

// cause returns why a context has ended, or else err.
func cause(ctx context.Context, err error) error {
	if because := context.Cause(ctx); because != nil && err != nil {
		return because
	}
	return err
}

// Event calls the handler with an event. An error means that nothing is known of the outcome.
func (p *Program) Event(ctx context.Context, c Call, event []byte) (Result, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	res, err := p.event(ctx, c, fnruntime.PathEvent, event)
	return res, cause(ctx, err)
}

// Rehearse lets the program do what it does for an event, without the handler.
func (p *Program) Rehearse(ctx context.Context, c Call) (Result, error) {
	ctx, cancel := c.bound(ctx)
	defer cancel()
	res, err := p.event(ctx, c, fnruntime.PathRehearse, []byte("{}"))
	return res, cause(ctx, err)
}

func (p *Program) event(ctx context.Context, c Call, path string, event []byte) (res Result, err error) {
	r, err := request(ctx, http.MethodPost, path, bytes.NewReader(event))
	if err != nil {
		return res, err
	}
	c.head(r.Header)
	r.Header.Set("Content-Type", "application/json")
	answer, err := p.transport.RoundTrip(r)
	if err != nil {
		return res, err
	}
	defer answer.Body.Close()
	limit := max(c.MaxResult, fnruntime.MaxSummary)
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err != nil {
		return res, err
	}
	if res.Status = answer.StatusCode; res.Status == http.StatusOK && int64(len(body)) > c.MaxResult {
		res.Failure = tooLarge(c.MaxResult) // the rest is not read, and with it the summary
		return res, nil
	}
	if res.Summary, err = p.summary(ctx, c, answer); err != nil {
		return res, err
	}
	switch {
	case res.Status == http.StatusOK && json.Valid(body):
		res.Body = body
	case res.Status == http.StatusOK:
		res.Failure = &fnruntime.Failure{Type: "InvalidResult", Message: "the result is not JSON"}
	case res.Status == http.StatusInternalServerError || res.Status == http.StatusGatewayTimeout:
		failure, err := fnruntime.DecodeFailure(body)
		if err != nil {
			return res, err
		}
		res.Failure = &failure
		if full := res.Summary.Failure; full != nil && failure.Stack == "" {
			res.Failure = full
		}
	default:
		return res, fmt.Errorf("%s: status %d", path, res.Status)
	}
	return res, nil
}

func tooLarge(limit int64) *fnruntime.Failure {
	return &fnruntime.Failure{Type: "ResultTooLarge",
		Message: fmt.Sprintf("the result has more than %d bytes: stream it, or write it to a store of objects", limit)}
}

// summary returns the summary of an invocation whose response has been read to its end.
func (p *Program) summary(ctx context.Context, c Call, answer *http.Response) (fnruntime.Summary, error) {
	if trailer := answer.Trailer.Get(fnruntime.TrailerSummary); trailer != "" {
		s, err := fnruntime.ParseSummary(trailer)
		if err != nil || !s.More {
			return s, err
		}
	}
	r, err := request(ctx, http.MethodGet, fnruntime.PathSummary+string(c.Run), nil)
	if err != nil {
		return fnruntime.Summary{}, err
	}
	full, err := p.transport.RoundTrip(r)
	if err != nil {
		return fnruntime.Summary{}, err
	}
	defer full.Body.Close()
	data, err := io.ReadAll(io.LimitReader(full.Body, fnruntime.MaxSummary+1))
	if err != nil {
		return fnruntime.Summary{}, err
	}
	if full.StatusCode != http.StatusOK {
		return fnruntime.Summary{}, fmt.Errorf("%s: status %d", fnruntime.PathSummary, full.StatusCode)
	}
	return fnruntime.DecodeSummary(data)
}
