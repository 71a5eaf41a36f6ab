package proxy

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strings"
)

// errorBody is the body of a response to a request that did not reach a program.
type errorBody struct {
	Sandbox string `json:"sandboxId,omitempty"`
	Port    int    `json:"port,omitempty"`
	Message string `json:"message"`
	Code    int    `json:"code"`
}

// writeError sends b as JSON, or as an HTML page to a client that accepts one.
func writeError(w http.ResponseWriter, r *http.Request, status int, b errorBody) {
	b.Code = status
	w.Header().Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(b) // the client may have closed the connection
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	// The client may have closed the connection.
	_, _ = fmt.Fprintf(
		w, errorPage, status, html.EscapeString(b.Message), html.EscapeString(b.Sandbox), portText(b.Port),
	)
}

func portText(port int) string {
	if port == 0 {
		return ""
	}
	return fmt.Sprintf("port %d", port)
}

const errorPage = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sandbox</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{font:16px/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34rem;padding:0 1rem}code{color:#555}</style>
</head><body><p><code>%d</code></p><h1>%s</h1><p><code>%s %s</code></p></body></html>
`
