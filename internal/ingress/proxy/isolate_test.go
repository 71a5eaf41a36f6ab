package proxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
)

// ask sends a request to the fixture and returns the response with its body read.
func (w *fixture) ask(t *testing.T, method, host, uri string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+uri, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Header = host, header
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

// TestResponsesStayOnTheirHost checks that no response of a program takes effect on another host, and none behind a
// shared host name on another response.
func TestResponsesStayOnTheirHost(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		h := rw.Header()
		h["Set-Cookie"] = []string{
			"a=1; Domain=example.test; Path=/x; HttpOnly", "b=2;domain=.example.test;SameSite=None", "c=3",
			"pandastack_preview=x", "__Host-pandastack_preview=x; Secure; Path=/",
		}
		for _, name := range []string{
			"Clear-Site-Data", "Alt-Svc", "Service-Worker-Allowed", "Strict-Transport-Security", "NEL", "Report-To",
		} {
			h.Set(name, "x")
		}
		h.Set("Content-Security-Policy", "default-src *")
		rw.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(rw, "ok")
	}))
	informed := false
	trace := &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error { informed = true; return nil },
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", w.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "3000-sbxa.example.test"
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close() // only the headers matter
	if informed {
		t.Error("an informational response of the program reached the client")
	}
	want := []string{"a=1; Path=/x; HttpOnly", "b=2;SameSite=None", "c=3"}
	if got := res.Header.Values("Set-Cookie"); !slices.Equal(got, want) {
		t.Errorf("cookies on the own host: got %q, want %q", got, want)
	}
	for name, want := range map[string]string{
		"Clear-Site-Data": "", "Alt-Svc": "", "Service-Worker-Allowed": "x", "Strict-Transport-Security": "x",
		"Content-Security-Policy": "default-src *",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s on the own host: got %q, want %q", name, got, want)
		}
	}

	res, _ = w.ask(t, "GET", "localhost", "/", http.Header{"Test-Sandbox": {"sbxa"}})
	for name, want := range map[string]string{
		"Set-Cookie": "", "Clear-Site-Data": "", "Alt-Svc": "", "Service-Worker-Allowed": "", "Nel": "",
		"Report-To": "", "Strict-Transport-Security": "", "Content-Security-Policy": "sandbox",
		"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s on a shared host: got %q, want %q", name, got, want)
		}
	}
	worker := http.Header{"Test-Sandbox": {"sbxa"}, "Service-Worker": {"script"}}
	res, _ = w.ask(t, "GET", "localhost", "/sw.js", worker)
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("service worker on a shared host: got %d, want 403", res.StatusCode)
	}
	res, _ = w.ask(t, "GET", "3000-sbxa.test", "/sw.js", http.Header{"Service-Worker": {"script"}})
	if res.StatusCode != http.StatusOK {
		t.Errorf("service worker on the own host: got %d, want 200", res.StatusCode)
	}
}

// TestProgramsSeeNoCredentials checks that keys and tokens of the platform reach no program, wherever a client put
// them, and that a program's own ones do.
func TestProgramsSeeNoCredentials(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %q", r.RequestURI, r.Header)
	}))
	_, text := w.ask(t, "GET", "3000-sbxa.test", "/?access%5Ftoken=key_1&access_token=a&k=key_2&x=1", http.Header{
		"Authorization": {"Bearer key_3"}, "X-Api-Key": {"key_4"}, "X-Access-Token": {"agent-secret"},
		"Sec-Websocket-Protocol": {"chat, bearer.key_5"}, "X-Own": {"own"}, "Proxy-Authorization": {"Basic key_6"},
		"X-Forwarded-Prefix": {"/made/up"},
	})
	for _, secret := range []string{"key_", "agent-secret", "made/up"} {
		if strings.Contains(text, secret) {
			t.Errorf("the program saw %s in %s", secret, text)
		}
	}
	for _, own := range []string{"/?x=1 ", `"chat"`, `"X-Own":["own"]`} {
		if !strings.Contains(text, own) {
			t.Errorf("the program did not see %s in %s", own, text)
		}
	}
	if _, text = w.ask(t, "GET", "3000-sbxa.test", "/?access_token=own", http.Header{
		"Authorization": {"Bearer own"}, "X-Api-Key": {"own"}, "X-Access-Token": {"own"}, "Cookie": {"a=1"},
	}); strings.Count(text, "own") != 4 || !strings.Contains(text, "a=1") {
		t.Errorf("the program did not see its own credentials: %s", text)
	}
	if _, text = w.ask(t, "GET", "localhost", "/", http.Header{
		"Test-Sandbox": {"sbxa"}, "Cookie": {"a=1"},
	}); strings.Contains(text, "a=1") {
		t.Errorf("cookies of a shared host reached a program: %s", text)
	}
}

// TestOtherProtocols checks that no upgrade but that to WebSocket reaches a program, and that no request is forwarded
// whose target is not a path.
func TestOtherProtocols(t *testing.T) {
	w := newFixture(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "program upgrade=%q settings=%q", r.Header.Get("Upgrade"), r.Header.Get("Http2-Settings"))
	}))
	for _, c := range []struct{ name, request, status, want string }{
		{"h2c", "GET / HTTP/1.1\r\nHost: 3000-sbxa.test\r\nConnection: Upgrade, HTTP2-Settings\r\n" +
			"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", "200", `program upgrade="" settings=""`},
		{"smuggled-settings", "GET / HTTP/1.1\r\nHost: 3000-sbxa.test\r\nHTTP2-Settings: AAMA\r\n", "200",
			`program upgrade="" settings=""`},
		{"connect", "CONNECT 3000-sbxa.test:80 HTTP/1.1\r\nHost: 3000-sbxa.test\r\n", "405", "CONNECT"},
		{"asterisk", "GET * HTTP/1.1\r\nHost: 3000-sbxa.test\r\n", "400", "not a path"},
		{"absolute", "GET http://3000-sbxa.test/a HTTP/1.1\r\nHost: api.test\r\n", "200", "program"},
		{"absolute-of-the-api", "GET http://api.test/a HTTP/1.1\r\nHost: 3000-sbxa.test\r\n", "200", "api"},
		{"two-hosts", "GET / HTTP/1.1\r\nHost: 3000-sbxa.test\r\nHost: api.test\r\n", "400", ""},
		{"user-in-host", "GET / HTTP/1.1\r\nHost: x@3000-sbxa.test\r\n", "400", ""},
		{"encoded-host", "GET / HTTP/1.1\r\nHost: 3000-sbxa%2etest.test\r\n", "400", "malformed"},
		{"two-lengths", "POST / HTTP/1.1\r\nHost: 3000-sbxa.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
			"400", ""},
		{"unknown-coding", "POST / HTTP/1.1\r\nHost: 3000-sbxa.test\r\nTransfer-Encoding: chunked, x\r\n", "501", ""},
		{"space-before-colon", "GET / HTTP/1.1\r\nHost : 3000-sbxa.test\r\n", "400", ""},
		{"trailing-dot", "GET / HTTP/1.1\r\nHost: 3000-SBXA.test.\r\n", "200", "program"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, c.request+"\r\n"); err != nil {
				t.Fatal(err)
			}
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err != nil || !strings.HasPrefix(res.Status, c.status) || !strings.Contains(string(text), c.want) {
				t.Errorf("got %s %s, %v; want %s with %q", res.Status, text, err, c.status, c.want)
			}
		})
	}
}
