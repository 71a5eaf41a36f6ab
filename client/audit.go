package client

import (
	"context"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
)

// Audit are the calls on the audit log.
type Audit struct{ c *Client }

// AuditFilter selects entries of the audit log.
type AuditFilter struct {
	Since, Until time.Time // not before, and before; zero: all
	Target       string    // id of a resource; "": all
	Limit        int       // of List, at most 1000; 0: 100
	All          bool      // of all workspaces; operators only
}

func (f AuditFilter) query() url.Values {
	q := url.Values{}
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until} {
		if !t.IsZero() {
			q.Set(name, t.UTC().Format(time.RFC3339))
		}
	}
	if f.Target != "" {
		q.Set("target", f.Target)
	}
	if f.All {
		q.Set("all", "1")
	}
	return q
}

// List returns the newest entries, newest first.
func (a *Audit) List(ctx context.Context, f AuditFilter) ([]api.AuditEntry, error) {
	var out api.AuditList
	rq := get(apiPath("audit"))
	rq.query = f.query()
	if f.Limit > 0 {
		rq.query.Set("limit", strconv.Itoa(f.Limit))
	}
	err := a.c.do(ctx, rq, &out)
	return out.Entries, err
}

// Export returns all entries, oldest first, as one JSON value on each line. The caller closes it.
//
// The stream ends with an error if the log was not sent to its end.
func (a *Audit) Export(ctx context.Context, f AuditFilter) (io.ReadCloser, error) {
	rq := get(apiPath("audit"))
	rq.query = f.query()
	rq.query.Set("format", "ndjson")
	rq.query.Set("order", "asc")
	res, err := a.c.send(ctx, rq)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}
