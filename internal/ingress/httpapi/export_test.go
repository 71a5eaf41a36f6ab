package httpapi

import (
	"time"

	"github.com/pandastack/pandastack/internal/ingress/httpapi/strictjson"
)

// Line is a row of the table of routes, for tests.
type Line struct {
	Method, Pattern, Need string
	WebSocket, JSON       bool // what it is, and whether it takes a body of JSON
}

// Table returns all routes.
func Table() []Line {
	var all []Line
	for _, rt := range routes() {
		all = append(all, Line{rt.method, rt.pattern, string(rt.need), rt.gives == ws, rt.in != nil})
	}
	return all
}

// Strict decodes a body as the routes do.
func Strict(data []byte, v any) error { return strictjson.Decode(data, v) }

// WaitOf returns how long a create may take.
func WaitOf(prefer string) time.Duration { return waitLimit(prefer) }
