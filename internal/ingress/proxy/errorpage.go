package proxy

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strings"

	"github.com/pandastack/pandastack/api"
)

// errorBody is the body of a response to a request that did not reach a program.
//
// It has the fields of E2B's proxy, in which code is the HTTP status, and those of every error of the API, whose code
// is ErrorCode here.
type errorBody struct {
	Sandbox   string        `json:"sandboxId,omitempty"`
	Port      int           `json:"port,omitempty"`
	Message   string        `json:"message"`
	Code      int           `json:"code"`
	Error     string        `json:"error"`
	ErrorCode api.Code      `json:"error_code"`
	RequestID api.RequestID `json:"request_id"`
	Retryable bool          `json:"retryable"`
}

// writeError sends b as JSON, or as an HTML page to a client that accepts one. The caller sets ErrorCode unless it is
// the code of the status.
func writeError(w http.ResponseWriter, r *http.Request, status int, b errorBody) {
	if b.ErrorCode == "" {
		b.ErrorCode = api.CodeOfStatus(status)
	}
	b.Code, b.Error, b.Retryable, b.RequestID = status, b.Message, b.ErrorCode.Info().Retryable, api.NewRequestID()
	if WantsPage(r) {
		w.Header().Set("X-Request-Id", string(b.RequestID))
		detail := b.Sandbox
		if b.Port != 0 {
			detail += fmt.Sprintf(" port %d", b.Port)
		}
		WritePage(w, status, b.Message, detail)
		return
	}
	writeJSON(w, status, b.RequestID, b)
}

func writeJSON(w http.ResponseWriter, status int, id api.RequestID, body any) {
	h := w.Header()
	h.Set("X-Request-Id", string(id))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have closed the connection
}

// WantsPage reports whether a client asks for HTML, as browsers do when they show a page.
func WantsPage(r *http.Request) bool { return strings.Contains(r.Header.Get("Accept"), "text/html") }

// WritePage sends an error as an HTML page.
func WritePage(w http.ResponseWriter, status int, message, detail string) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	// The client may have closed the connection.
	message, detail = html.EscapeString(message), html.EscapeString(detail)
	_, _ = fmt.Fprintf(w, errorPage, message, status, message, detail)
}

const errorPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>%s</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34rem;padding:0 1rem}code{color:#555}</style>
</head><body><p><code>%d</code></p><h1>%s</h1><p><code>%s</code></p></body></html>
`
