package function

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
)

// urlEvent is a request as an event: the payload, of version 2.0, of function URLs of AWS Lambda.
type urlEvent struct {
	Version    string            `json:"version"`
	RouteKey   string            `json:"routeKey"`
	RawPath    string            `json:"rawPath"`
	RawQuery   string            `json:"rawQueryString"`
	Cookies    []string          `json:"cookies,omitempty"`
	Headers    map[string]string `json:"headers"`
	Query      map[string]string `json:"queryStringParameters,omitempty"`
	Context    urlContext        `json:"requestContext"`
	Body       string            `json:"body,omitempty"`
	IsBase64   bool              `json:"isBase64Encoded"`
	StageNames map[string]string `json:"stageVariables,omitempty"`
}

type urlContext struct {
	DomainName string  `json:"domainName"`
	HTTP       urlHTTP `json:"http"`
	RequestID  string  `json:"requestId"`
	RouteKey   string  `json:"routeKey"`
	Stage      string  `json:"stage"`
	Time       string  `json:"time"`
	TimeEpoch  int64   `json:"timeEpoch"`
}

type urlHTTP struct {
	Method    string `json:"method"`
	Path      string `json:"path"`
	Protocol  string `json:"protocol"`
	SourceIP  string `json:"sourceIp"`
	UserAgent string `json:"userAgent"`
}

// requestEvent makes an event of a request.
func requestEvent(c *call, r *http.Request, body io.Reader) ([]byte, *failure) {
	data, err := io.ReadAll(io.LimitReader(body, maxEvent+1))
	if err != nil {
		return nil, failed(typeEvent, "the body cannot be read: %s", err)
	}
	if len(data) > maxEvent {
		return nil, failed(typeEvent, "the body has more than %d MiB", maxEvent>>20)
	}
	source, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		source = r.RemoteAddr
	}
	if from, _, _ := strings.Cut(r.Header.Get("X-Forwarded-For"), ","); from != "" {
		source = strings.TrimSpace(from)
	}
	now := time.Now().UTC()
	path, query, _ := strings.Cut(r.RequestURI, "?")
	e := urlEvent{
		Version: "2.0", RouteKey: "$default", RawPath: path, RawQuery: query,
		Headers: map[string]string{"host": r.Host},
		Context: urlContext{
			DomainName: r.Host, RequestID: c.id, RouteKey: "$default", Stage: "$default",
			Time: now.Format("02/Jan/2006:15:04:05 -0700"), TimeEpoch: now.UnixMilli(),
			HTTP: urlHTTP{
				Method: r.Method, Path: path, Protocol: r.Proto, SourceIP: source, UserAgent: r.UserAgent(),
			},
		},
	}
	for name, values := range r.Header {
		if name == "Cookie" {
			for _, line := range values {
				for cookie := range strings.SplitSeq(line, ";") {
					e.Cookies = append(e.Cookies, strings.TrimSpace(cookie))
				}
			}
			continue
		}
		e.Headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	if values, _ := url.ParseQuery(query); len(values) > 0 { // what can be parsed of it
		e.Query = map[string]string{}
		for name, list := range values {
			e.Query[name] = strings.Join(list, ",")
		}
	}
	if e.IsBase64 = !textual(r.Header.Get("Content-Type"), data); e.IsBase64 {
		e.Body = base64.StdEncoding.EncodeToString(data)
	} else {
		e.Body = string(data)
	}
	out, _ := json.Marshal(e) // strings and numbers alone
	return out, nil
}

// textual reports whether a body is text.
func textual(contentType string, body []byte) bool {
	if len(body) == 0 {
		return true
	}
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	known := kind == "" || strings.HasPrefix(kind, "text/") || strings.HasSuffix(kind, "+json") ||
		strings.HasSuffix(kind, "+xml") || slices.Contains([]string{"application/json", "application/javascript",
		"application/xml", "application/x-www-form-urlencoded", "application/graphql"}, kind)
	return known && utf8.Valid(body)
}

// urlResult is what a handler of events may return for a request.
type urlResult struct {
	Status   *int                       `json:"statusCode"`
	Headers  map[string]json.RawMessage `json:"headers"`
	Multi    map[string][]string        `json:"multiValueHeaders"`
	Cookies  []string                   `json:"cookies"`
	Body     json.RawMessage            `json:"body"`
	IsBase64 bool                       `json:"isBase64Encoded"`
}

// respond writes the result of a handler of events as a response.
func respond(result []byte, to reply) error {
	h := head{Status: http.StatusOK}
	var in urlResult
	if err := json.Unmarshal(result, &in); err != nil || in.Status == nil {
		var s string
		if json.Unmarshal(result, &s) == nil && !bytes.Equal(bytes.TrimSpace(result), []byte("null")) {
			h.Headers, result = [][2]string{{"Content-Type", "text/plain; charset=utf-8"}}, []byte(s)
		} else {
			h.Headers = [][2]string{{"Content-Type", "application/json"}}
		}
		return writeAll(to, h, result)
	}
	h.Status = *in.Status
	typed := false
	for name, value := range in.Headers {
		h.Headers = append(h.Headers, [2]string{name, jsonText(value)})
		typed = typed || strings.EqualFold(name, "content-type")
	}
	for name, values := range in.Multi {
		for _, value := range values {
			h.Headers = append(h.Headers, [2]string{name, value})
		}
		typed = typed || strings.EqualFold(name, "content-type")
	}
	for _, cookie := range in.Cookies {
		h.Headers = append(h.Headers, [2]string{"Set-Cookie", cookie})
	}
	if !typed {
		h.Headers = append(h.Headers, [2]string{"Content-Type", "application/json"})
	}
	body := []byte(jsonText(in.Body))
	if in.IsBase64 {
		var err error
		if body, err = base64.StdEncoding.DecodeString(string(body)); err != nil {
			return fmt.Errorf("%w: the body is not base64", errResponse)
		}
	}
	return writeAll(to, h, body)
}

// jsonText returns the text of a JSON string, the JSON of any other value, and nothing for null.
func jsonText(value json.RawMessage) string {
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return string(value)
	}
	return s
}

func writeAll(to reply, h head, body []byte) error {
	if err := to.head(h); err != nil {
		return err
	}
	if len(body) == 0 {
		return nil
	}
	return to.data(body, true)
}

// collector keeps a response or a result in memory.
type collector struct {
	h    head
	body []byte
}

func (o *collector) head(h head) error {
	o.h = h
	return nil
}

func (o *collector) data(p []byte, _ bool) error {
	if len(o.body)+len(p) > maxEvent {
		return fmt.Errorf("%w: it has more than %d MiB", errResponse, maxEvent>>20)
	}
	o.body = append(o.body, p...)
	return nil
}

// asRequest makes an event a POST request, and its response a result.
func asRequest(
	ctx context.Context, c *call, event []byte, to reply,
	do func(ctx context.Context, in start, body io.Reader, to reply) (*failure, *int),
) (*failure, *int) {
	var got collector
	in := c.start(callHTTP)
	in.Method, in.URL, in.Host = http.MethodPost, "/", "localhost"
	in.Headers = [][2]string{
		{"host", "localhost"}, {"content-type", "application/json"}, {"content-length", fmt.Sprint(len(event))},
	}
	if f, code := do(ctx, in, bytes.NewReader(event), &got); f != nil {
		return f, code
	}
	if got.h.Status >= 400 {
		return failed(typeHTTP, "the response has status %d: %.1000s", got.h.Status, got.body), nil
	}
	result := got.body
	if !json.Valid(result) {
		text := string(result)
		if !utf8.Valid(result) {
			text = base64.StdEncoding.EncodeToString(result)
		}
		result, _ = json.Marshal(text) // a string
	}
	if err := to.data(result, true); err != nil {
		return nil, nil // the caller is gone
	}
	return nil, nil
}

// asEvent makes a request an event, and its result the response.
func asEvent(
	ctx context.Context, c *call, r *http.Request, body io.Reader, to reply,
	do func(ctx context.Context, c *call, event []byte, to reply) (*failure, *int),
) (*failure, *int) {
	event, f := requestEvent(c, r, body)
	if f != nil {
		return f, nil
	}
	var got collector
	if f, code := do(ctx, c, event, &got); f != nil {
		return f, code
	}
	if !json.Valid(got.body) {
		return failed(typeResult, "the handler's result is not JSON"), nil
	}
	if err := respond(got.body, to); err != nil {
		return failed(typeResponse, "%s", err), nil
	}
	return nil, nil
}

func validHeader(name, value string) bool {
	return httpguts.ValidHeaderFieldName(name) && httpguts.ValidHeaderFieldValue(value)
}

// start returns what a shim is to know of a call.
func (c *call) start(kind string) start {
	return start{
		Kind: kind, Number: c.number, ID: c.id, Attempt: c.attempt, Remaining: c.remaining(), Trace: c.trace,
		Scheduled: c.scheduled, Queue: c.queue, Rehearsal: c.rehearsal,
	}
}
