package integrationtest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// request sends a request without a key but with headers, and returns status, headers and body.
func request(t *testing.T, method, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	rq, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		rq.Header.Set(header[i], header[i+1])
	}
	rq.Host = rq.Header.Get("Host") // "": of the URL
	rq.Header.Del("Host")
	res, err := http.DefaultClient.Do(rq)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

// tenant creates a workspace with quotas of its own, and returns a client with its first key, and the key.
func tenant(
	t *testing.T,
	w *integrationtest.Platform,
	id api.Workspace,
	quotas map[string]*int64,
) (*client.Client, string) {
	t.Helper()
	made, err := w.Client.Workspaces.Create(t.Context(), api.WorkspaceRequest{ID: id, Quotas: quotas})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(w.URL, made.Token)
	if err != nil {
		t.Fatal(err)
	}
	return c, made.Token
}

// TestQuotaInBothAPIs: what a quota refuses is a 429 that says which quota, what is used and what is allowed, in the
// shape of each API.
func TestQuotaInBothAPIs(t *testing.T) {
	w := integrationtest.New(t)
	one := int64(1)
	c, key := tenant(t, w, "acme", map[string]*int64{"sandboxes": &one})
	if _, err := c.Sandboxes.Create(t.Context(), api.CreateRequest{}); err != nil {
		t.Fatal(err)
	}
	status, header, body := request(t, "POST", w.URL+"/v1/sandboxes", "{}", "Authorization", "Bearer "+key)
	var native api.Error
	if err := json.Unmarshal([]byte(body), &native); err != nil || status != 429 || header.Get("Retry-After") == "" ||
		native.Code != api.QuotaExceeded || !native.Retryable || native.Details["kind"] != "sandboxes" ||
		native.Details["used"] != 1.0 || native.Details["allowed"] != 1.0 {
		t.Errorf("/v1: %d %s", status, body)
	}
	status, header, body = request(t, "POST", w.URL+"/sandboxes", `{"templateID":"base"}`,
		"X-API-Key", "e2b_"+strings.TrimPrefix(key, "pds_"))
	var foreign struct {
		Code      int    `json:"code"`
		Message   string `json:"message"`
		ErrorCode string `json:"error_code"`
	}
	if err := json.Unmarshal([]byte(body), &foreign); err != nil || status != 429 || foreign.Code != 429 ||
		foreign.ErrorCode != "quota_exceeded" || !strings.Contains(foreign.Message, "1 of 1 sandboxes") ||
		header.Get("Retry-After") != "1" {
		t.Errorf("E2B: %d %s", status, body)
	}
	own, err := c.Workspaces.Own(t.Context())
	if err != nil || own.ID != "acme" || *own.Quotas[0].Used != 1 || own.Quotas[0].Allowed != 1 {
		t.Errorf("its own workspace: %+v, %v", own, err)
	}
	if _, err := w.Client.Workspaces.SetQuotas(t.Context(), "acme", map[string]*int64{"sandboxes": nil}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sandboxes.Create(t.Context(), api.CreateRequest{}); err != nil {
		t.Errorf("with the default quota: %v", err)
	}
}

// TestSuspendedWorkspace: requests of a suspended workspace are refused on every way in: both APIs, and a preview that
// was made before. Its sandbox hibernates, and runs again after the workspace is resumed; other workspaces go on.
func TestSuspendedWorkspace(t *testing.T) {
	w := integrationtest.New(t)
	ctx := t.Context()
	c, key := tenant(t, w, "acme", nil)
	box, err := c.Sandboxes.Create(ctx, api.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	preview, err := c.Sandboxes.Preview(ctx, box.ID, api.PreviewRequest{Port: 3000})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Workspaces.List(ctx); api.CodeOf(err) != api.Forbidden {
		t.Errorf("an owner lists all workspaces: %v", err)
	}
	if got, err := w.Client.Workspaces.Suspend(ctx, "acme"); err != nil || got.Status != "suspended" {
		t.Fatalf("Suspend = %+v, %v", got, err)
	}
	if _, err := c.Sandboxes.Get(ctx, box.ID); api.CodeOf(err) != api.WorkspaceSuspended {
		t.Errorf("/v1: got %v, want workspace_suspended", err)
	}
	status, _, body := request(t, "GET", w.URL+"/v2/sandboxes", "", "X-API-Key", "e2b_"+strings.TrimPrefix(key, "pds_"))
	if status != http.StatusForbidden || !strings.Contains(body, `"error_code":"workspace_suspended"`) {
		t.Errorf("E2B: %d %s", status, body)
	}
	page, err := url.Parse(preview.HostURL)
	if err != nil {
		t.Fatal(err)
	}
	status, _, body = request(t, "GET", w.URL+page.RequestURI(), "", "Host", page.Host)
	if status != http.StatusForbidden || !strings.Contains(body, "suspended") {
		t.Errorf("preview: %d %s", status, body)
	}
	status, _, body = request(t, "GET", w.URL+"/", "", "E2b-Sandbox-Id", string(box.ID), "E2b-Sandbox-Port", "3000")
	if status != http.StatusForbidden || !strings.Contains(body, "suspended") {
		t.Errorf("port: %d %s", status, body)
	}
	deadline := time.After(time.Minute)
	for len(w.Driver.Monitors()) > 0 {
		select {
		case <-deadline:
			t.Fatal("the sandbox does not hibernate")
		case <-time.After(10 * time.Millisecond):
		}
	}
	create(t, w, api.CreateRequest{})
	if _, err := w.Client.Workspaces.Resume(ctx, "acme"); err != nil {
		t.Fatal(err)
	}
	if res, err := c.Sandboxes.Exec(ctx, box.ID, api.ExecRequest{Cmd: "echo awake"}); err != nil ||
		!strings.Contains(res.Stdout, "awake") {
		t.Errorf("exec after the workspace was resumed: %+v, %v", res, err)
	}
	if _, err := w.Client.Workspaces.Suspend(ctx, "default"); api.CodeOf(err) != api.Conflict {
		t.Errorf("suspend of the operator's own workspace: %v", err)
	}
}
