package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
)

// recordAudit records a call that may have changed something, opened a shell or a port, or was refused.
func (s *Server) recordAudit(rq *request, rt route, status int, began time.Time) {
	call := access.Call{
		Face: access.V1, Pattern: rt.muxPattern(), Principal: rq.p, Token: bearer(rq.r), Action: rq.action,
		Target: rq.target, Status: status, Request: string(rq.id()), Began: began,
	}
	named := []string{
		"sandbox", "snapshot", "template", "prefix",
		"workspace", "database", "app", "schedule", "ssh_key", "function", "queue",
	}
	for _, name := range named {
		if v := rq.r.PathValue(name); v != "" && call.Target == "" {
			call.Target = v
		}
	}
	switch {
	case rt.checksBrokerToken() && status == http.StatusUnauthorized:
		s.guard.Failed(rq.r)
		s.guard.Record(rq.r, call)
	case rt.checksBrokerToken(): // programs repeat these
		s.guard.RecordUse(rq.r, call)
	case rt.need == access.Signed && status == http.StatusUnauthorized && rq.action == "": // the signature is wrong
		s.guard.Failed(rq.r)
		s.guard.Record(rq.r, call)
	case rq.action != "": // pages and programs repeat these
		s.guard.RecordUse(rq.r, call)
	default:
		s.guard.Record(rq.r, call)
	}
}

// ndjson is the media type of an exported log: one JSON value on each line.
const ndjson = "application/x-ndjson"

func auditList() endpoint {
	return endpoint{out: reflect.TypeFor[api.AuditList](), status: http.StatusOK, handle: listAudit}
}

func auditParams() []param {
	return []param{
		{"since", "string", "Not before this time, RFC 3339."},
		{"until", "string", "Before this time, RFC 3339."},
		{"target", "string", "Done to this id."},
		{"limit", "integer", "1 to 1000; 100 if absent. Not for ndjson, which has all."},
		{"cursor", "string", "X-Next-Cursor of the page before."},
		{"order", "string", "asc: oldest first; desc, the default: newest first."},
		{"format", "string", "json, the default, or ndjson: all entries, one on each line, as " + ndjson + "."},
		{"all", "string", "1: of all workspaces, and of callers without a valid key; operators only."},
	}
}

// listAudit sends what callers of the workspace did.
func listAudit(rq *request) error {
	log, values := rq.s.deps.Audit, rq.r.URL.Query()
	if log == nil {
		return api.Errorf(api.Unsupported, "this server keeps no audit log")
	}
	q, err := access.ParseAuditQuery(values)
	if err != nil {
		return err
	}
	switch format := values.Get("format"); format {
	case "", "json":
	case "ndjson":
		out := &ndjsonWriter{rq: rq, enc: json.NewEncoder(rq.w)}
		return out.end(access.ExportAudit(rq.r.Context(), log, rq.p, q, out.write))
	default:
		return api.Errorf(api.Invalid, "format: %q is neither json nor ndjson", truncate(format)).
			With("field", "format")
	}
	page, next, err := access.ListAudit(rq.r.Context(), log, rq.p, q)
	if err != nil {
		return err
	}
	out := api.AuditList{Entries: page}
	if !q.Since.IsZero() {
		since := q.Since.UTC()
		out.Since = &since
	}
	if next != "" {
		rq.w.Header().Set("X-Next-Cursor", next)
	}
	writeJSON(rq.w, http.StatusOK, out)
	return nil
}

// ndjsonWriter sends entries, one on each line.
type ndjsonWriter struct {
	rq    *request
	enc   *json.Encoder
	began bool
}

func (w *ndjsonWriter) write(page []api.AuditEntry) error {
	if !w.began {
		w.began = true
		w.rq.w.Header().Set("Content-Type", ndjson)
		w.rq.w.Header().Set("Cache-Control", "no-store")
		w.rq.w.WriteHeader(http.StatusOK)
	}
	for _, e := range page {
		if err := w.enc.Encode(e); err != nil {
			return err
		}
	}
	return nil
}

// end makes a response that is not whole break off: one that just ended would look whole.
func (w *ndjsonWriter) end(err error) error {
	if err == nil || !w.began {
		return err
	}
	return errors.Join(err, http.NewResponseController(w.rq.w).SetWriteDeadline(time.Unix(1, 0)))
}
