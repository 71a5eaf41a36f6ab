package access

import (
	"context"
	"net/url"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// AuditLog is an audit log that can be read; *audit.Log is one.
type AuditLog interface {
	Audit
	List(ctx context.Context, p auth.Principal, q audit.Query) ([]audit.Entry, error)
}

// maxAuditPage bounds the entries of a page.
const maxAuditPage = 1000

// ParseAuditQuery reads from the query of a request which entries of the audit log it asks for.
func ParseAuditQuery(values url.Values) (audit.Query, error) {
	q := audit.Query{Limit: 100, Target: values.Get("target"), After: values.Get("cursor")}
	if text := values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxAuditPage {
			return q, invalid("limit", "%.60q is not a number from 1 to %d", text, maxAuditPage)
		}
		q.Limit = n
	}
	switch order := values.Get("order"); order {
	case "", "desc":
	case "asc":
		q.OldestFirst = true
	default:
		return q, invalid("order", "%.60q is neither asc nor desc", order)
	}
	switch all := values.Get("all"); all {
	case "", "0", "false":
	case "1", "true":
		q.All = true
	default:
		return q, invalid("all", "%.60q is neither 1 nor 0", all)
	}
	for name, at := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		text := values.Get(name)
		if text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return q, invalid(name, "%.60q is not a time such as 2026-01-02T15:04:05Z", text)
		}
		*at = t
	}
	return q, nil
}

func invalid(field, format string, args ...any) error {
	return api.Errorf(api.Invalid, field+": "+format, args...).With("field", field)
}

// ListAudit returns a page of the audit log, and the cursor of the next page if there may be one.
func ListAudit(
	ctx context.Context,
	log AuditLog,
	p auth.Principal,
	q audit.Query,
) (page []api.AuditEntry, next string, err error) {
	list, err := log.List(ctx, p, q)
	if err != nil {
		return nil, "", err
	}
	page = make([]api.AuditEntry, 0, len(list))
	for _, e := range list {
		page = append(page, api.AuditEntry{
			ID: e.ID, Time: e.At, Workspace: e.Principal.Workspace, Key: e.Principal.KeyPrefix, Action: e.Action,
			Target: e.Target, Outcome: e.Outcome, Remote: e.Remote, RequestID: api.RequestID(e.Request),
			TookMS: float64(e.Took.Microseconds()) / 1000,
		})
	}
	if len(list) == q.Limit {
		next = list[len(list)-1].ID
	}
	return page, next, nil
}

// ExportAudit passes all entries that a query selects to yield, page by page.
func ExportAudit(
	ctx context.Context,
	log AuditLog,
	p auth.Principal,
	q audit.Query,
	yield func([]api.AuditEntry) error,
) error {
	q.Limit = maxAuditPage
	for {
		page, next, err := ListAudit(ctx, log, p, q)
		if err != nil {
			return err
		}
		if err := yield(page); err != nil || next == "" {
			return err
		}
		q.After = next
	}
}
