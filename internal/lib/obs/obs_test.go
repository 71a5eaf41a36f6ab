package obs_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/lib/obs"
)

func TestPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := obs.Start()
		<-time.After(2 * time.Second)
		p.Done("disk")
		<-time.After(3 * time.Second)
		p.Done("load")
		want := []obs.Phase{{"disk", 2 * time.Second}, {"load", 3 * time.Second}}
		got := p.List()
		if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("List: got %v, want %v", got, want)
		}
		if p.Total() != 5*time.Second {
			t.Errorf("Total: got %v, want 5s", p.Total())
		}
		var out bytes.Buffer
		slog.New(slog.NewTextHandler(&out, nil)).Info("machine runs", p.Attr())
		if !strings.Contains(out.String(), "phases.disk=2s phases.load=3s") {
			t.Errorf("log line %q does not contain the phases", out.String())
		}
	})
}

func TestNewLogger(t *testing.T) {
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "json", "warn")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud")
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud"`) {
		t.Errorf("got log %q", got)
	}
	for _, bad := range [][2]string{{"xml", "info"}, {"text", "loud"}} {
		if _, err := obs.NewLogger(&out, bad[0], bad[1]); err == nil {
			t.Errorf("NewLogger with format %q, level %q: got no error", bad[0], bad[1])
		}
	}
}
