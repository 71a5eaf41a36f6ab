// Package client is the Go SDK: it calls /v1 of a PandaStack server.
//
// It owns requests, retries and the reading of responses. Package api has their meaning. A request is retried only if
// that is safe: reads, deletions, and creates, which always carry an idempotency key. Every error is an *api.Error: the
// server's, or unavailable if the server could not be reached.
//
//	c, err := client.FromEnv(os.Environ())
//	box, err := c.Sandboxes.Create(ctx, api.CreateRequest{Template: "base"})
//	res, err := c.Sandboxes.Exec(ctx, box.ID, api.ExecRequest{Cmd: "uname -a"})
//
// A Client may be used by many goroutines. Contexts bound every call; there is no other timeout.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/lib/config"
)

// maxResponse bounds a JSON response in bytes: two outputs of an exec with every byte escaped, and some more.
const maxResponse = 16 * api.MaxOutput

// Client calls one server with one key. Make one with New.
type Client struct {
	Sandboxes *Sandboxes
	Files     *Files
	Snapshots *Snapshots
	Volumes   *Volumes
	Databases *Databases
	Apps      *Apps
	Schedules *Schedules
	Functions *Functions
	Queues    *Queues
	Templates *Templates
	Tokens    *Tokens
	SSHKeys   *SSHKeys
	Audit     *Audit
	// Workspaces are the calls of operators on workspaces.
	Workspaces *Workspaces

	base  *url.URL // without a trailing slash and without /v1
	key   string
	http  *http.Client
	tries int
	agent string
}

// Option configures a Client.
type Option func(*Client)

// WithHTTPClient uses h for all requests. h must not have a timeout, since streams last long.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithTries tries a retryable request at most n times; 1 means no retry. The default is 3.
func WithTries(n int) Option { return func(c *Client) { c.tries = max(n, 1) } }

// WithUserAgent sets the User-Agent header.
func WithUserAgent(name string) Option { return func(c *Client) { c.agent = name } }

// New returns a client of the server at baseURL, with or without /v1 at its end.
//
// It sends nothing. A baseURL that is no http or https address is an invalid error.
func New(baseURL, key string, opts ...Option) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(baseURL, "/"))
	if err != nil || (base.Scheme != "http" && base.Scheme != "https") || base.Host == "" {
		return nil, api.Errorf(api.Invalid, "address %q of the server is not like http://host:port", baseURL)
	}
	base.Path = strings.TrimSuffix(base.Path, "/v1")
	c := &Client{base: base, key: key, http: defaultHTTP(), tries: 3, agent: "pandastack-go"}
	for _, o := range opts {
		o(c)
	}
	c.Sandboxes, c.Files, c.Snapshots = &Sandboxes{c}, &Files{c}, &Snapshots{c}
	c.Templates, c.Tokens, c.Workspaces = &Templates{c}, &Tokens{c}, &Workspaces{c}
	c.Audit, c.Volumes, c.Databases, c.Apps = &Audit{c}, &Volumes{c}, &Databases{c}, &Apps{c}
	c.Schedules, c.Functions, c.Queues = &Schedules{c}, &Functions{c}, &Queues{c}
	c.SSHKeys = &SSHKeys{c}
	return c, nil
}

// FromEnv returns a client of the server that environ names, a list in the form of os.Environ.
//
// The server is PANDASTACK_API or PANDASTACK_API_URL with the key in PANDASTACK_API_KEY or PANDASTACK_TOKEN, else that
// of the user's ~/.config/pandastack/config.json, else http://127.0.0.1:7700. FromEnv returns an invalid error if the
// two addresses differ or the file cannot be read.
func FromEnv(environ []string, opts ...Option) (*Client, error) {
	found, err := config.LoadClient(config.ClientSources{Env: environ, DataDir: config.DataDir("", environ)})
	if err != nil {
		return nil, api.Errorf(api.Invalid, "%v", err)
	}
	return New(found.URL, found.Key, opts...)
}

// defaultHTTP keeps enough connections for a burst of creates.
func defaultHTTP() *http.Client {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return &http.Client{}
	}
	t = t.Clone()
	t.MaxIdleConnsPerHost = 64
	return &http.Client{Transport: t}
}

// URL returns the address of the server, without /v1.
func (c *Client) URL() string { return c.base.String() }

// Key returns the key that every request carries.
func (c *Client) Key() string { return c.key }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is one request.
type call struct {
	method     string
	path       string // from the root, escaped
	query      url.Values
	in         any       // sent as JSON; nil: nothing
	body       io.Reader // sent as it is, instead of in
	size       int64     // of body; -1: not known
	header     map[string]string
	idempotent bool // may be sent more than once
}

func get(path string) call          { return call{method: http.MethodGet, path: path, idempotent: true} }
func del(path string) call          { return call{method: http.MethodDelete, path: path, idempotent: true} }
func post(path string, in any) call { return call{method: http.MethodPost, path: path, in: in} }

// do sends a call and decodes its JSON response into out, unless out is nil.
func (c *Client) do(ctx context.Context, rq call, out any) error {
	_, err := c.doHeader(ctx, rq, out)
	return err
}

// doHeader is do that also returns the header of the response.
func (c *Client) doHeader(ctx context.Context, rq call, out any) (http.Header, error) {
	res, err := c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close() //nolint:errcheck // it has been read
	data, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if out == nil || len(data) == 0 {
		return res.Header, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, api.Wrap(
			api.Internal,
			err,
			fmt.Sprintf("%s %s: the response is not the expected JSON: %v", rq.method, rq.path, err),
		)
	}
	return res.Header, nil
}

// send sends a call, retrying if that is safe and may help, and returns a response that is 2xx. The caller closes its
// body.
func (c *Client) send(ctx context.Context, rq call) (*http.Response, error) {
	var payload []byte
	if rq.in != nil {
		var err error
		if payload, err = json.Marshal(rq.in); err != nil {
			return nil, api.Errorf(api.Invalid, "encode request: %w", err)
		}
	}
	for try := 1; ; try++ {
		res, err := c.attempt(ctx, rq, payload)
		if err == nil || !rq.idempotent || try >= c.tries || !isRetryable(err) {
			return res, err
		}
		if err := backoff(ctx, try); err != nil {
			return nil, err
		}
	}
}

func (c *Client) attempt(ctx context.Context, rq call, payload []byte) (*http.Response, error) {
	r, err := c.request(ctx, rq, payload)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, transportError(ctx, err)
	}
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close() //nolint:errcheck // the answer is an error already
	return nil, responseError(res)
}

func (c *Client) request(ctx context.Context, rq call, payload []byte) (*http.Request, error) {
	body := rq.body
	if payload != nil {
		body = bytes.NewReader(payload)
	}
	address := c.base.String() + rq.path
	if len(rq.query) > 0 {
		address += "?" + rq.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, rq.method, address, body)
	if err != nil {
		return nil, api.Errorf(api.Invalid, "make request: %w", err)
	}
	if rq.body != nil {
		r.ContentLength = rq.size
		r.Header.Set("Content-Type", "application/octet-stream")
	} else if payload != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("User-Agent", c.agent)
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	for k, v := range rq.header {
		r.Header.Set(k, v)
	}
	return r, nil
}

// responseError reads the error of a response that is not 2xx.
func responseError(res *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(res.Body, 8*api.MaxOutput)) // a part of the body is good enough for an error
	e := &api.Error{}
	if err := json.Unmarshal(data, e); err != nil || e.Message == "" {
		text := strings.TrimSpace(string(data[:min(len(data), 512)]))
		if text == "" {
			text = "the server returned " + res.Status
		}
		e = api.Errorf(api.CodeOfStatus(res.StatusCode), "%s", text)
	}
	if e.Code == "" {
		e.Code = api.CodeOfStatus(res.StatusCode)
		e.Retryable = e.Code.Info().Retryable
	}
	if e.RequestID == "" {
		e.RequestID = api.RequestID(res.Header.Get("X-Request-Id"))
	}
	return e
}

// transportError returns the error of a failed connection: that of the caller's context if it ended, else unavailable.
func transportError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return api.AsError(context.Cause(ctx))
	}
	return api.Wrap(api.Unavailable, err, "cannot reach the server: "+err.Error())
}

// isRetryable reports whether a retry may help soon. A lack of capacity does not end within a second.
func isRetryable(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Code == api.Unavailable
}

// backoff waits before a retry: 100 ms, doubled each time, plus or minus half.
func backoff(ctx context.Context, try int) error {
	wait := 100 * time.Millisecond << min(try-1, 5)
	t := time.NewTimer(wait/2 + rand.N(wait)) //nolint:gosec // only spreads repetitions
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return api.AsError(context.Cause(ctx))
	}
}

// apiPath joins escaped segments below /v1.
func apiPath(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

func sandboxPath(id api.SandboxID, rest ...string) string {
	return apiPath(append([]string{"sandboxes", string(id)}, rest...)...)
}

func itoa[T ~int | ~int64 | ~uint32](n T) string { return strconv.FormatInt(int64(n), 10) }
