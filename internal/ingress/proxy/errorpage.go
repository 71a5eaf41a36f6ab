package proxy

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"strings"
)

// errorBody is what a client is told when a request did not reach a program.
type errorBody struct {
	Sandbox string `json:"sandboxId,omitempty"`
	Port    int    `json:"port,omitempty"`
	Message string `json:"message"`
	Code    int    `json:"code"`
}

// writeError tells a program in JSON and a person in a page.
func writeError(w http.ResponseWriter, r *http.Request, status int, b errorBody) {
	b.Code = status
	w.Header().Set("Cache-Control", "no-store")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		// A client that does not read its answer is gone.
		_ = json.NewEncoder(w).Encode(b)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, errorPage, status, html.EscapeString(b.Message), html.EscapeString(b.Sandbox), portText(b.Port))
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
