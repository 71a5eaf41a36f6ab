package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

const id = api.SandboxID("sbxaaaaaaaaaaaaaaaaaaaa")

// serve returns a client of a server that handles every request with h.
func serve(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := client.New(srv.URL+"/v1/", "pds_key", client.WithUserAgent("test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestNewRefusesBadAddresses(t *testing.T) {
	for _, s := range []string{"", "localhost:8080", "ftp://x", "http://"} {
		if _, err := client.New(s, ""); api.CodeOf(err) != api.Invalid {
			t.Errorf("New(%q) = %v, want invalid", s, err)
		}
	}
}

func TestFromEnv(t *testing.T) {
	home := "HOME=" + t.TempDir()
	for _, test := range []struct {
		name string
		env  []string
		url  string // empty: FromEnv returns an error
	}{
		{"published name", []string{"PANDASTACK_API=http://one", "PANDASTACK_API_KEY=pds_k"}, "http://one"},
		{"other name", []string{"PANDASTACK_API_URL=http://two", "PANDASTACK_TOKEN=pds_k"}, "http://two"},
		{"two servers", []string{"PANDASTACK_API=http://one", "PANDASTACK_API_URL=http://two"}, ""},
	} {
		c, err := client.FromEnv(append(test.env, home, "PANDASTACK_DATA_DIR="+t.TempDir()))
		switch {
		case test.url == "" && api.CodeOf(err) != api.Invalid:
			t.Errorf("%s: FromEnv returned %v, want an invalid error", test.name, err)
		case test.url != "" && (err != nil || c.URL() != test.url || c.Key() != "pds_k"):
			t.Errorf("%s: FromEnv returned %v, %v, want a client of %s with key pds_k", test.name, c, err, test.url)
		}
	}
}

func TestCreateIsRetriedUnderOneKey(t *testing.T) {
	keys := map[string]bool{}
	var n atomic.Int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != "POST" || r.URL.Path != "/v1/sandboxes" || r.Header.Get("Authorization") != "Bearer pds_key" {
			t.Errorf(
				"got request %s %s with key %q, want POST /v1/sandboxes with the key",
				r.Method,
				r.URL.Path,
				r.Header.Get("Authorization"),
			)
		}
		keys[r.Header.Get("Idempotency-Key")] = true
		body, _ := io.ReadAll(r.Body)
		if string(body) != `{"template":"base"}` {
			t.Errorf("got body %s, want the template", body)
		}
		if n.Add(1) < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":"starting","code":"unavailable","retryable":true}`)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%q,"status":"running"}`, id)
	})
	box, err := c.Sandboxes.Create(t.Context(), api.CreateRequest{Template: "base"})
	if err != nil || box.ID != id || box.Status != api.Running {
		t.Fatalf("Create = %+v, %v; want the sandbox and no error", box, err)
	}
	if len(keys) != 1 || keys[""] || n.Load() != 3 {
		t.Errorf("got %d requests under keys %v, want 3 under one", n.Load(), keys)
	}
}

func TestUnsafeRequestsAreNotRetried(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(context.Context, *client.Client) error
		code api.Code
	}{
		{"exec", func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: "x"})
			return err
		}, api.Unavailable},
		{"write", func(ctx context.Context, c *client.Client) error {
			_, err := c.Files.Write(ctx, id, "/x", strings.NewReader("abc"), 3, client.WriteOptions{})
			return err
		}, api.Unavailable},
		{"get-no-capacity", func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Get(ctx, id)
			return err
		}, api.NoCapacity},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var n atomic.Int32
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				n.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusServiceUnavailable)
				_ = json.NewEncoder(w).Encode(api.Errorf(tt.code, "no"))
			})
			if err := tt.do(t.Context(), c); api.CodeOf(err) != tt.code {
				t.Errorf("error = %v, want %s", err, tt.code)
			}
			if n.Load() != 1 {
				t.Errorf("got %d requests, want 1", n.Load())
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		code       api.Code
		message    string
	}{
		{"ours", `{"error":"gone","code":"wrong_state","request_id":"req1"}`, 409, api.WrongState, "gone"},
		{"text", "bad gateway", 502, api.Unreachable, "bad gateway"},
		{"empty", "", 404, api.NotFound, "the server returned 404 Not Found"},
		{"teapot", "no", 418, api.Invalid, "no"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.status)
				fmt.Fprint(w, tt.body)
			})
			_, err := c.Sandboxes.Get(t.Context(), id)
			if api.CodeOf(err) != tt.code || err.Error() != tt.message {
				t.Errorf("error = %q (%s), want %q (%s)", err, api.CodeOf(err), tt.message, tt.code)
			}
		})
	}
}

func TestUnreachableServerIsUnavailable(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	c, err := client.New(srv.URL, "", client.WithTries(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Me(t.Context()); api.CodeOf(err) != api.Unavailable {
		t.Errorf("error = %v, want unavailable", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := c.Me(ctx); api.CodeOf(err) == api.Unavailable {
		t.Errorf("error = %v, want the context's own", err)
	}
}

func TestExecStream(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		code       api.Code
		exit       int
	}{
		{"exit", "event: start\ndata: {\"pid\":7}\n\nevent: stdout\ndata: {\"chunk\":\"a\\n\"}\n\n: ping\n\n" +
			"event: stderr\r\ndata: {\"chunk\":\"b\"}\r\n\r\nevent: exit\ndata: {\"exit_code\":3}\n\n", "", 3},
		{"error", "event: error\ndata: {\"error\":\"command timeout after 1s\",\"code\":\"timeout\"}\n\n",
			api.Timeout, 0},
		{"cut", "event: stdout\ndata: {\"chunk\":\"a\"}\n\n", api.Unavailable, 0},
		{"broken", "event: exit\ndata: {\n\n", api.Internal, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Accept") != "text/event-stream" {
					t.Errorf("header Accept = %q, want text/event-stream", r.Header.Get("Accept"))
				}
				fmt.Fprint(w, tt.body)
			})
			var out, errs string
			var pid uint32
			exit, err := c.Sandboxes.ExecStream(t.Context(), id, api.ExecRequest{Cmd: "x"}, client.Output{
				Started: func(p uint32) { pid = p },
				Stdout:  func(s string) { out += s },
				Stderr:  func(s string) { errs += s },
			})
			if api.CodeOf(err) != tt.code || exit.ExitCode != tt.exit {
				t.Fatalf("ExecStream = %+v, %v; want exit %d, code %q", exit, err, tt.exit, tt.code)
			}
			if tt.name == "exit" && (out != "a\n" || errs != "b" || pid != 7) {
				t.Errorf("got stdout %q, stderr %q, pid %d; want a, b, 7", out, errs, pid)
			}
		})
	}
}

func TestListFollowsFilterAndCursor(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		want := "cursor=c1&limit=2&metadata.a=b&status=running&status=paused&template=base"
		if got := r.URL.RawQuery; got != want {
			t.Errorf("got query %s, want %s", got, want)
		}
		w.Header().Set("X-Next-Cursor", "c2")
		fmt.Fprint(w, `[]`)
	})
	_, next, err := c.Sandboxes.Page(t.Context(), api.SandboxFilter{
		Statuses: []api.Status{api.Running, api.Paused}, Template: "base",
		Metadata: map[string]string{"a": "b"}, Limit: 2, Cursor: "c1",
	})
	if err != nil || next != "c2" {
		t.Errorf("Page returned cursor %q, %v; want c2", next, err)
	}
}

func TestFileRange(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("path") != "/a b&c" || r.Header.Get("Range") != "bytes=5-9" {
			t.Errorf("got request %s with range %q", r.URL, r.Header.Get("Range"))
		}
		w.WriteHeader(http.StatusPartialContent)
		fmt.Fprint(w, "56789")
	})
	f, err := c.Files.ReadRange(t.Context(), id, "/a b&c", 5, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := io.ReadAll(f); err != nil || string(data) != "56789" {
		t.Errorf("ReadAll = %q, %v", data, err)
	}
}
