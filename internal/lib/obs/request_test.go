package obs_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/obs"
)

// TestRequestAndDuration reads a line of the log of a request.
func TestRequestAndDuration(t *testing.T) {
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "json", "info")
	if err != nil {
		t.Fatal(err)
	}
	ctx := obs.WithRequest(t.Context(), "req1")
	log.With("machine", "m").InfoContext(ctx, "created", "took", 1500*time.Millisecond,
		slog.Group("phases", slog.Duration("load", time.Millisecond)))
	log.Info("of no request")
	var got struct {
		Request, Machine, Took string
		Phases                 struct{ Load string }
	}
	lines := bytes.SplitAfter(out.Bytes(), []byte("\n"))
	if err := json.Unmarshal(lines[0], &got); err != nil || got.Request != "req1" || got.Machine != "m" ||
		got.Took != "1.5s" || got.Phases.Load != "1ms" {
		t.Errorf("%v; the line is %s", err, lines[0])
	}
	if bytes.Contains(lines[1], []byte("request\":")) {
		t.Errorf("a line of no request is %s", lines[1])
	}
}
