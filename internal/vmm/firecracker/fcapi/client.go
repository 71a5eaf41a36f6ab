package fcapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// maxResponse bounds a response in bytes. The largest real one has a few KiB.
const maxResponse = 1 << 20

// MaxBody bounds the body of a request in bytes: the default of Firecracker's
// --http-api-max-payload-size. It responds to larger ones with an error and then parses their
// rest as requests.
const MaxBody = 51200

// TooLargeError reports that a request is larger than Firecracker accepts. It was not sent.
type TooLargeError struct {
	Op    string
	Bytes int
}

// Error returns the request, its size and the limit.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%s: the request has %d bytes, Firecracker accepts at most %d", e.Op, e.Bytes, MaxBody)
}

// FaultError is an error response of Firecracker.
type FaultError struct {
	Op     string // such as "PUT /snapshot/load"
	Status int
	Fault  string // the message, made printable and short
}

// notActive matches the messages about devices whose driver in the guest is not active (yet).
var notActive = regexp.MustCompile(`(?i)device\s*(is\s*)?not\s*activ`)

// NotActive reports whether the request failed because the guest's driver of the device is not
// active. A guest that is still booting may activate it later.
func (e *FaultError) NotActive() bool {
	return e.Status == http.StatusBadRequest && notActive.MatchString(e.Fault)
}

// Error returns the request, the status and the fault message.
func (e *FaultError) Error() string {
	return fmt.Sprintf("%s: refused with status %d: %s", e.Op, e.Status, e.Fault)
}

// NewerError reports that a request needs a newer release of Firecracker.
type NewerError struct {
	Op    string
	Field string // "" for the whole request
	Since Version
	Have  Version
}

// Error returns the request and the release that it needs.
func (e *NewerError) Error() string {
	what := e.Op
	if e.Field != "" {
		what += " with " + e.Field
	}
	return fmt.Sprintf("%s needs Firecracker %s; this is %s", what, e.Since, e.Have)
}

// ErrClosed reports that the connection broke during a request or could not be made. Most likely
// the monitor has exited.
var ErrClosed = errors.New("the monitor's API does not respond")

// Client is an API client for one monitor.
type Client struct {
	http    *http.Client
	version Version
	mu      sync.Mutex // held during each request
}

// New returns a client for a monitor of the given release. dial connects to the monitor.
func New(version Version, dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{version: version, http: &http.Client{Transport: &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true, MaxConnsPerHost: 1, MaxResponseHeaderBytes: 16 << 10,
	}}}
}

// Close closes the connection. The monitor continues.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// since is the release that introduced a field or a request.
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
		if len(data) > MaxBody {
			return &TooLargeError{op, len(data)}
		}
		payload = bytes.NewReader(data) // has a known length: Firecracker does not support chunked encoding
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
	response, err := c.http.Do(req)
	if err != nil {
		return c.broken(ctx, op, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	if err != nil {
		return c.broken(ctx, op, err)
	}
	if len(data) > maxResponse {
		return fmt.Errorf("%s: the response is longer than %d bytes", op, maxResponse)
	}
	return decode(op, response.StatusCode, data, out)
}

// broken returns the error of a request without a response.
func (c *Client) broken(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %w", op, ErrClosed, err)
}

// decode decodes a response into out or an error.
func decode(op string, status int, data []byte, out any) error {
	if status < 200 || status > 299 {
		var f struct {
			Fault string `json:"fault_message"`
			Error string `json:"error"` // of the HTTP server, before the request reaches the API
		}
		if err := json.Unmarshal(data, &f); err != nil {
			f.Error = string(data)
		}
		return &FaultError{op, status, printable(cmp.Or(f.Fault, f.Error, string(data)))}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%s: response %s: %w", op, printable(string(data)), err)
	}
	return nil
}

// printable makes text from a monitor safe for logs.
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
