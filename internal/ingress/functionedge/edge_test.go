package functionedge_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/functionedge"
)

const (
	id     = "funaaaaaaaaaaaaaaaaaaaa"
	host   = "fn-" + id + ".fn.test"
	secret = "fnsec_0123456789"
)

// functions is a service with one function, which responds with its request.
type functions struct {
	auth  api.FunctionAuth
	error *api.Error // what serving it ends with; nil: a response
}

func (f *functions) Target(_ context.Context, fn api.FunctionID) (functionedge.Target, error) {
	if fn != id {
		return functionedge.Target{}, api.Errorf(api.NotFound, "function %s not found", fn)
	}
	return functionedge.Target{Function: id, Workspace: "ours", Auth: f.auth, Secret: secret, MaxBody: 16}, nil
}

func (f *functions) Named(_ context.Context, p auth.Principal, name string) (api.FunctionID, error) {
	if p.Workspace != "ours" || name != "hello" {
		return "", api.Errorf(api.NotFound, "function %s not found", name)
	}
	return id, nil
}

func (f *functions) Serve(
	w http.ResponseWriter,
	r *http.Request,
	fn api.FunctionID,
	alias string,
	fail functionedge.Fail,
) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fail(w, r, api.Errorf(api.TooLarge, "too large"))
		return
	}
	if f.error != nil {
		fail(w, r, f.error)
		return
	}
	h := w.Header()
	h.Set("Clear-Site-Data", `"cookies"`)
	h.Set("Set-Cookie", "a=b; Domain=test; Path=/x")
	h.Set("Service-Worker-Allowed", "/")
	w.WriteHeader(http.StatusEarlyHints)
	w.WriteHeader(http.StatusTeapot)
	_, _ = fmt.Fprintf(w, "%s %s %s@%s %s\n", r.Method, r.URL.RequestURI(), fn, alias, body)
	_ = r.Header.Write(w)
}

type guard struct{ failed int }

func (g *guard) Admit(
	_ http.ResponseWriter,
	_ *http.Request,
	token string,
	need access.Need,
) (auth.Principal, error) {
	switch {
	case need != access.Need(api.ScopePorts):
		return auth.Principal{}, api.Errorf(api.Internal, "the need is %s", need)
	case token == "pds_ours":
		return auth.Principal{Workspace: "ours"}, nil
	case token == "pds_theirs":
		return auth.Principal{Workspace: "theirs"}, nil
	}
	return auth.Principal{}, api.Errorf(api.Unauthenticated, "no such key")
}

func (g *guard) Failed(*http.Request) { g.failed++ }

func newEdge(f *functions, g *guard) *functionedge.Edge {
	return functionedge.New(functionedge.Config{
		Functions: f, Guard: g, Suffix: "fn.test", Log: slog.New(slog.DiscardHandler),
		IsKey: func(text string) bool { return strings.HasPrefix(text, "pds_") },
	})
}

// send sends a request to a host name. change is a list of names and values of headers.
func send(
	t *testing.T,
	e *functionedge.Edge,
	method, at, target, body string,
	headers ...string,
) *httptest.ResponseRecorder {
	t.Helper()
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	r.Host, r.RemoteAddr = at, "192.0.2.7:1"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	e.Middleware(next).ServeHTTP(w, r)
	return w
}

func TestSplitHost(t *testing.T) {
	for text, want := range map[string]string{
		host:                            id + " ",
		"fn-" + id + "--canary.fn.test": id + " canary",
		"fn-" + id + "--.fn.test":       "",
		"fn-" + id + ".other.test":      "",
		"fn-" + id:                      "",
		"fn-x.fn.test":                  "",
		"a.fn-" + id + ".fn.test":       "",
		"shop.fn.test":                  "",
		id + ".fn.test":                 "",
	} {
		fn, alias, ok := functionedge.SplitHost(text, "fn.test")
		if got := string(fn) + " " + alias; ok != (want != "") || ok && got != want {
			t.Errorf("%s: got %q, %v, want %q", text, got, ok, want)
		}
	}
}

// TestWhoMayCall checks each protection against each credential.
func TestWhoMayCall(t *testing.T) {
	now := time.Now()
	signed := func(at time.Time, secret, method, target, body string) []string {
		return []string{"X-Pandastack-Signature", functionedge.Sign(secret, at, method, target, []byte(body))}
	}
	credentials := map[string][]string{
		"nothing":         nil,
		"a key":           {"Authorization", "Bearer pds_ours"},
		"a foreign key":   {"Authorization", "Bearer pds_theirs"},
		"a wrong key":     {"Authorization", "Bearer pds_wrong"},
		"a signature":     signed(now, secret, "POST", "/a?b", "body"),
		"another secret":  signed(now, "x", "POST", "/a?b", "body"),
		"an old one":      signed(now.Add(-time.Hour), secret, "POST", "/a?b", "body"),
		"a future one":    signed(now.Add(time.Hour), secret, "POST", "/a?b", "body"),
		"another method":  signed(now, secret, "PUT", "/a?b", "body"),
		"another path":    signed(now, secret, "POST", "/b", "body"),
		"another body":    signed(now, secret, "POST", "/a?b", "bodies"),
		"no signature":    {"X-Pandastack-Signature", "sesame"},
		"half of one":     {"X-Pandastack-Signature", "t=1,v1=00"},
		"no time in it":   {"X-Pandastack-Signature", "t=x,v1=" + strings.Repeat("00", 32)},
		"an empty secret": signed(now, "", "POST", "/a?b", "body"),
	}
	allowed := map[api.FunctionAuth][]string{
		api.FunctionKey: {"a key"}, api.FunctionSigned: {"a key", "a signature"}, "": nil,
	}
	for protection, want := range allowed {
		for name, headers := range credentials {
			g := &guard{}
			w := send(t, newEdge(&functions{auth: protection}, g), "POST", host, "/a?b", "body", headers...)
			ok := false
			for _, one := range want {
				ok = ok || one == name
			}
			if (w.Code == http.StatusTeapot) != ok || strings.Contains(w.Body.String(), "pds_o") {
				t.Errorf("%q with %s: got %d %s, want %v", protection, name, w.Code, w.Body, ok)
			}
			tried := len(headers) > 0 && headers[0] == "X-Pandastack-Signature" && protection == api.FunctionSigned
			if (g.failed == 1) != (tried && !ok) {
				t.Errorf("%q with %s: %d failures were counted", protection, name, g.failed)
			}
		}
	}
	for name, headers := range credentials {
		w := send(t, newEdge(&functions{auth: api.FunctionPublic}, &guard{}), "POST", host, "/a?b", "body", headers...)
		if w.Code != http.StatusTeapot {
			t.Errorf("public with %s: got %d %s", name, w.Code, w.Body)
		}
	}
}

// TestWhatAHandlerGets checks the headers of requests and of responses.
func TestWhatAHandlerGets(t *testing.T) {
	e := newEdge(&functions{auth: api.FunctionPublic}, &guard{})
	w := send(t, e, "PATCH", "fn-"+id+"--canary.fn.test:7700", "/a//b?c=d&k=pds_x", "body",
		"Authorization", "Basic abc", "X-Key", "pds_leak", "Pandastack-Deadline-Ms", "9999999",
		"Pandastack_Invocation", "inv", "X-Forwarded-For", "203.0.113.9", "X-Real-Ip", "203.0.113.9", "X-Custom", "1",
		"Cookie", "a=b")
	got := w.Body.String()
	for _, want := range []string{
		"PATCH /a//b?c=d " + id + "@canary body\n", "Authorization: Basic abc\r\n", "X-Custom: 1\r\n",
		"Cookie: a=b\r\n",
		"X-Forwarded-For: 192.0.2.7\r\n", "X-Real-Ip: 192.0.2.7\r\n", "X-Forwarded-Proto: http\r\n",
		"X-Forwarded-Host: fn-" + id + "--canary.fn.test:7700\r\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the handler lacks %q:\n%s", want, got)
		}
	}
	for _, bad := range []string{"pds_", "Pandastack", "203.0.113.9"} {
		if strings.Contains(got, bad) {
			t.Errorf("the handler has %q:\n%s", bad, got)
		}
	}
	h := w.Result().Header
	if w.Code != http.StatusTeapot || h.Get("Clear-Site-Data") != "" || h.Get("Set-Cookie") != "a=b; Path=/x" ||
		h.Get("Content-Security-Policy") != "" {
		t.Errorf("got the response %d %v", w.Code, h)
	}
}

// TestRequestsOverTheAPI checks that responses below the API's origin have no effect on it.
func TestRequestsOverTheAPI(t *testing.T) {
	e := newEdge(&functions{auth: api.FunctionPublic}, &guard{})
	forward := func(change func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/x", http.NoBody)
		change(r)
		w := httptest.NewRecorder()
		e.ForwardFunction(w, r, id, "/v1/functions/f/http-invoke", func(
			w http.ResponseWriter, _ *http.Request, err *api.Error,
		) {
			w.WriteHeader(err.Code.Info().Status)
		})
		return w
	}
	w := forward(func(*http.Request) {})
	h := w.Result().Header
	if w.Code != http.StatusTeapot || h.Get("Content-Security-Policy") != "sandbox" ||
		h.Get("Service-Worker-Allowed") != "" || h.Get("Set-Cookie") != "a=b; Path=/v1/functions/f/http-invoke/x" ||
		!strings.Contains(w.Body.String(), "X-Forwarded-Prefix: /v1/functions/f/http-invoke\r\n") {
		t.Errorf("got %d %v %s", w.Code, h, w.Body)
	}
	if w = forward(func(r *http.Request) { r.Header.Set("Service-Worker", "script") }); w.Code != 403 {
		t.Errorf("a service worker: got %d, want 403", w.Code)
	}
}

// TestCallersOverTheAPI checks who the caller of a function is, which is named by its id or, with a key, by its name.
func TestCallersOverTheAPI(t *testing.T) {
	for _, tt := range []struct {
		auth      api.FunctionAuth
		fn, key   string
		status    int
		workspace api.Workspace
		function  api.FunctionID
	}{
		{api.FunctionPublic, id, "", 418, "ours", id},
		{api.FunctionPublic, id, "pds_theirs", 418, "ours", id},
		{api.FunctionKey, id, "pds_ours", 418, "ours", id},
		{api.FunctionKey, id, "pds_theirs", 404, "theirs", id},
		{api.FunctionKey, id, "", 401, "", id},
		{api.FunctionSigned, id, "", 401, "", id},
		{api.FunctionSigned, id, "pds_ours", 418, "ours", id},
		{api.FunctionKey, "hello", "pds_ours", 418, "ours", id},
		{api.FunctionPublic, "hello", "pds_ours", 418, "ours", id},
		{api.FunctionSigned, "hello", "pds_ours", 418, "ours", id},
		{api.FunctionPublic, "hello", "pds_theirs", 404, "theirs", ""},
		{api.FunctionPublic, "hello", "pds_none", 401, "", ""},
		{api.FunctionPublic, "hello", "", 401, "", ""},
		{api.FunctionKey, "other", "pds_ours", 404, "ours", ""},
	} {
		e := newEdge(&functions{auth: tt.auth}, &guard{})
		r := httptest.NewRequestWithContext(t.Context(), "GET", "/x", http.NoBody)
		if tt.key != "" {
			r.Header.Set("Authorization", "Bearer "+tt.key)
		}
		w := httptest.NewRecorder()
		fail := func(w http.ResponseWriter, _ *http.Request, err *api.Error) { w.WriteHeader(err.Code.Info().Status) }
		p, fn := e.ForwardFunction(w, r, tt.fn, "/v1/functions/f/http-invoke", fail)
		if w.Code != tt.status || p.Workspace != tt.workspace || fn != tt.function {
			t.Errorf("%s function %s with the key %q: status %d, caller %q, function %q, want %d, %q, %q", tt.auth,
				tt.fn, tt.key, w.Code, p.Workspace, fn, tt.status, tt.workspace, tt.function)
		}
		if strings.Contains(w.Body.String(), "pds_") {
			t.Errorf("%s function %s: the handler has a key: %s", tt.auth, tt.fn, w.Body)
		}
	}
}

// TestRequestsThatAreRefused checks what never reaches a handler, and that errors have the form of the API.
func TestRequestsThatAreRefused(t *testing.T) {
	f := &functions{auth: api.FunctionPublic}
	e := newEdge(f, &guard{})
	for name, tt := range map[string]struct {
		host, method, body string
		headers            []string
		error              *api.Error
		status             int
	}{
		"another host":      {host: "shop.fn.test", status: 204},
		"unknown":           {host: "fn-fun" + strings.Repeat("b", 20) + ".fn.test", status: 404},
		"large":             {host: host, body: strings.Repeat("x", 17), status: 413},
		"connect":           {host: host, method: "CONNECT", status: 405},
		"websocket":         {host: host, headers: []string{"Upgrade", "websocket"}, status: 501},
		"too many":          {host: host, error: api.Errorf(api.RateLimited, "busy"), status: 429},
		"a handler's fault": {host: host, error: api.Errorf(api.Unreachable, "it has crashed"), status: 502},
		"too slow":          {host: host, error: api.Errorf(api.Timeout, "it was too slow"), status: 504},
		"fine":              {host: host, status: 418},
	} {
		f.error = tt.error
		if tt.method == "" {
			tt.method = "POST"
		}
		w := send(t, e, tt.method, tt.host, "/", tt.body, tt.headers...)
		if w.Code != tt.status {
			t.Errorf("%s: got %d %s, want %d", name, w.Code, w.Body, tt.status)
		}
		if w.Code >= 400 && w.Code != 418 && !strings.Contains(w.Body.String(), `"code":"`) {
			t.Errorf("%s: got the error %s", name, w.Body)
		}
	}
}

// FuzzSignature checks that no header of a client makes the edge fail, or passes without the secret.
func FuzzSignature(f *testing.F) {
	f.Add("t=1767225600,v1=" + strings.Repeat("00", 32))
	f.Add(functionedge.Sign("x", time.Unix(1, 0), "POST", "/", nil))
	f.Add(",")
	f.Fuzz(func(t *testing.T, text string) {
		e := newEdge(&functions{auth: api.FunctionSigned}, &guard{})
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", http.NoBody)
		r.Host = host
		r.Header["X-Pandastack-Signature"] = []string{text}
		w := httptest.NewRecorder()
		e.Middleware(http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%q: got %d", text, w.Code)
		}
	})
}
