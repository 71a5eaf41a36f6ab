package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// recorder is an audit log in memory.
type recorder struct {
	mu  sync.Mutex
	all []audit.Entry
}

func (r *recorder) Record(_ context.Context, e audit.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, e)
}

func (r *recorder) RecordUse(ctx context.Context, e audit.Entry) { r.Record(ctx, e) }

func (r *recorder) List(_ context.Context, p auth.Principal, q audit.Query) ([]audit.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.all)
	if !q.OldestFirst {
		slices.Reverse(all)
	}
	var out []audit.Entry
	behind := q.After == ""
	for _, e := range all {
		if behind && e.Principal.Workspace == p.Workspace && (q.Target == "" || q.Target == e.Target) &&
			!e.At.Before(q.Since) && len(out) < q.Limit {
			out = append(out, e)
		}
		behind = behind || e.ID == q.After
	}
	return out, nil
}

func (r *recorder) copy() []audit.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// entries waits until the log of the fixture has a number of entries, which are recorded after the responses.
func (w *fixture) entries(query string, n int) []api.AuditEntry {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		var list api.AuditList
		w.do("GET", "/v1/audit?"+query, "", as(keyAdmin)).json(w.t, &list)
		if len(list.Entries) >= n {
			return list.Entries
		}
		select {
		case <-deadline:
			w.t.Fatalf("got entries %+v, want %d", list.Entries, n)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestAuditLog(t *testing.T) {
	w := newFixture(t)
	began := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	_, path := w.create()
	id := path[len("/v1/sandboxes/"):]
	w.do("GET", path, "")
	w.do("POST", path+"/pause", "", as(keyStranger))
	w.do("POST", path+"/pause", "", as("pds_wrong"))
	w.do("POST", path+"/pause", "", as(keyViewer))
	w.do("DELETE", path, "")
	all := w.entries("since="+began, 3)
	slices.Reverse(all)
	if len(all) != 3 || all[0].Action != "POST /v1/sandboxes" || all[1].Outcome != "forbidden" ||
		all[1].Key != "pds_view" || all[2].Action != "DELETE /v1/sandboxes/{sandbox}" || all[2].Target != id ||
		all[2].Outcome != "ok" || all[2].RequestID == "" || all[2].Remote == "" {
		t.Errorf("got entries %+v, want a create, a refused pause and a delete of %s", all, id)
	}
	for query, field := range map[string]string{
		"since=yesterday": "since", "until=x": "until", "order=up": "order", "format=xml": "format", "limit=0": "limit",
	} {
		if e := w.do("GET", "/v1/audit?"+query, "", as(keyAdmin)).failed(t); e.Details["field"] != field {
			t.Errorf("%s: %v", query, e)
		}
	}
}

// TestFailedAuthenticationIsRecorded checks that a call without a valid key is in the log of no workspace.
func TestFailedAuthenticationIsRecorded(t *testing.T) {
	w := newFixture(t)
	const guess = "pds_0123456789abcdef0123456789abcdef"
	w.do("DELETE", "/v1/sandboxes/x", "", as(guess))
	deadline := time.After(patience)
	for {
		if all := w.audit.copy(); len(all) > 0 {
			if e := all[0]; len(all) != 1 || e.Principal.Workspace != "" || e.Principal.KeyPrefix != guess[:12] ||
				e.Outcome != "unauthenticated" {
				t.Errorf("got entries %+v, want one failed authentication", all)
			}
			return
		}
		select {
		case <-deadline:
			t.Fatal("nothing was recorded")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestShellsAreRecorded checks that every way to a shell is recorded when it opens, while it is still open.
func TestShellsAreRecorded(t *testing.T) {
	w := newFixture(t)
	_, path := w.create()
	for n, shell := range []string{"/exec/ws", "/exec/pty", "/exec/pty/shared", "/ssh"} {
		header := http.Header{"Authorization": {"Bearer " + keyMember}}
		c := w.dial(path+shell, &websocket.DialOptions{HTTPHeader: header})
		last := w.entries("", n+2)[0]
		if !strings.HasSuffix(last.Action, shell) || last.Outcome != "ok" || last.Key != "pds_memb" {
			t.Errorf("after %s the last entry is %+v", shell, last)
		}
		_ = c.CloseNow() // the test has what it wants
	}
}

// TestAuditExport checks that an export has every entry once, the oldest first if that is asked for.
func TestAuditExport(t *testing.T) {
	w := newFixture(t)
	for n := range 2500 {
		w.audit.Record(t.Context(), audit.Entry{
			ID: fmt.Sprintf("%05d", n), Principal: auth.Principal{Workspace: "ours"}, Action: "x", At: time.Now(),
		})
	}
	for order, first := range map[string]string{"asc": "00000", "desc": "02499"} {
		a := w.do("GET", "/v1/audit?format=ndjson&order="+order, "", as(keyAdmin))
		lines := strings.Split(strings.TrimSpace(a.body), "\n")
		var e api.AuditEntry
		if err := json.Unmarshal([]byte(lines[0]), &e); err != nil || len(lines) != 2500 || e.ID != first ||
			a.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%s: %d lines, the first %s, %v", order, len(lines), lines[0], err)
		}
	}
	var list api.AuditList
	a := w.do("GET", "/v1/audit?limit=2", "", as(keyAdmin))
	a.json(t, &list)
	if next := a.header.Get("X-Next-Cursor"); len(list.Entries) != 2 || next != "02498" {
		t.Errorf("first page %+v, next %q", list.Entries, next)
	}
	w.do("GET", "/v1/audit?limit=1&cursor=02498", "", as(keyAdmin)).json(t, &list)
	if len(list.Entries) != 1 || list.Entries[0].ID != "02497" {
		t.Errorf("second page %+v", list.Entries)
	}
}
