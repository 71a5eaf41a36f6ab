package fcapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
)

// maxAnswer bounds an answer in bytes; the largest real one is some kilobytes.
const maxAnswer = 1 << 20

// FaultError is a request that Firecracker refused.
type FaultError struct {
	Op     string // "PUT /snapshot/load"
	Status int
	Fault  string // its words, printable and short
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("%s: refused with status %d: %s", e.Op, e.Status, e.Fault)
}

// NewerError is a request that needs a newer release than the one that runs.
type NewerError struct {
	Op    string
	Field string // "" for the request itself
	Since Version
	Have  Version
}

func (e *NewerError) Error() string {
	what := e.Op
	if e.Field != "" {
		what += " with " + e.Field
	}
	return fmt.Sprintf("%s needs Firecracker %s; this is %s", what, e.Since, e.Have)
}

// ErrClosed says that the connection broke while a request was under way, or that there was none: the
// monitor has most likely ended.
var ErrClosed = errors.New("the monitor's API does not answer")

// Client asks one monitor.
type Client struct {
	http    *http.Client
	version Version
	mu      sync.Mutex // held for each request
}

// New gives a client of a monitor of the given release, which dial connects to.
func New(version Version, dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{version: version, http: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true, MaxConnsPerHost: 1, MaxResponseHeaderBytes: 16 << 10,
	}}}
}

// Close ends the connection; the monitor goes on.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// since is the release that a field or a request came with.
type since struct {
	used  bool
	field string
	at    Version
}

func (c *Client) gate(op string, all ...since) error {
	for _, s := range all {
		if s.used && c.version.Compare(s.at) < 0 {
			return &NewerError{op, s.field, s.at, c.version}
		}
	}
	return nil
}

// do makes one request. body and out may be nil.
func (c *Client) do(ctx context.Context, method, path string, body, out any, fields ...since) error {
	op := method + " " + path
	if err := c.gate(op, fields...); err != nil {
		return err
	}
	var payload io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(data) // whose length is known: Firecracker reads no chunks
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://firecracker"+path, payload)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	answer, err := c.http.Do(req)
	if err != nil {
		return c.broken(ctx, op, err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return c.broken(ctx, op, err)
	}
	if len(data) > maxAnswer {
		return fmt.Errorf("%s: the answer is longer than %d bytes", op, maxAnswer)
	}
	return decode(op, answer.StatusCode, data, out)
}

// broken is the error of a request without an answer.
func (c *Client) broken(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %w", op, ErrClosed, err)
}

// decode turns an answer into an error or into out.
func decode(op string, status int, data []byte, out any) error {
	if status < 200 || status > 299 {
		var f struct {
			Fault string `json:"fault_message"`
		}
		if err := json.Unmarshal(data, &f); err != nil || f.Fault == "" {
			f.Fault = string(data)
		}
		return &FaultError{op, status, printable(f.Fault)}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: answer %s: %w", op, printable(string(data)), err)
	}
	return nil
}

// printable makes what a monitor says fit for a log line.
func printable(s string) string {
	const most = 400
	var b strings.Builder
	for _, r := range s {
		if b.Len() >= most {
			break
		}
		if r < ' ' || r == 0x7f || r == 0xfffd {
			r = ' '
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}
