package httpapi_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

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

func (r *recorder) List(_ context.Context, p auth.Principal, q audit.Query) ([]audit.Entry, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []audit.Entry
	for _, e := range slices.Backward(r.all) {
		if e.Principal.Workspace == p.Workspace && (q.Target == "" || q.Target == e.Target) && !e.At.Before(q.Since) &&
			len(out) < q.Limit {
			out = append(out, e)
		}
	}
	return out, nil
}

func TestAuditLog(t *testing.T) {
	w := newFixture(t)
	began := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	_, path := w.create()
	id := path[len("/v1/sandboxes/"):]
	w.do("GET", path, "")
	w.do("POST", path+"/pause", "", as(keyStranger))
	w.do("POST", path+"/pause", "", as("pds_wrong"))
	w.do("DELETE", path, "")
	// The entry is recorded after the response, so the last one may come a moment later.
	deadline := time.After(30 * time.Second)
	var list api.AuditList
	for len(list.Entries) < 2 {
		w.do("GET", "/v1/audit?since="+began, "", as(keyAdmin)).json(t, &list)
		select {
		case <-deadline:
			t.Fatalf("got entries %+v, want a create and a delete", list.Entries)
		case <-time.After(5 * time.Millisecond):
		}
	}
	first, last := list.Entries[len(list.Entries)-1], list.Entries[0]
	if len(list.Entries) != 2 || first.Action != "POST /v1/sandboxes" ||
		last.Action != "DELETE /v1/sandboxes/{sandbox}" ||
		last.Target != id ||
		last.Outcome != "ok" ||
		last.RequestID == "" {
		t.Errorf("got entries %+v, want a create and a delete of %s", list.Entries, id)
	}
	if list.Since == nil {
		t.Error("the response lacks since")
	}
	if a := w.do("GET", "/v1/audit?since=yesterday", "", as(keyAdmin)); a.status != 400 {
		t.Errorf("list with a malformed since: got %d %s, want 400", a.status, a.body)
	}
}
