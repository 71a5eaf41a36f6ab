package bake_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// lines passes on the lines of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
	done chan struct{} // closed by a line that contains last
	last string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if strings.Contains(string(p), l.last) {
		close(l.done)
	}
	return l.text.Write(p)
}

// A template that was baked with another guest agent is baked again at the start, before anybody asks for it, and one
// that is current or was never baked is not.
func TestStaleTemplateIsBakedAgainAtStart(t *testing.T) {
	first := newFixture(t)
	if _, cold, err := first.baker.Ensure(t.Context(), "base"); err != nil || !cold {
		t.Fatalf("Ensure = %t, %v", cold, err)
	}
	first.stop()
	log := &lines{done: make(chan struct{}), last: "stale template baked again"}
	next := openFixture(t, first.dir, func(w *fixture) {
		w.platform, w.rebakeStale, w.log = "p2", true, slog.New(slog.NewTextHandler(log, nil))
	})
	select {
	case <-log.done:
	case <-t.Context().Done():
		t.Fatal("the template was not baked again")
	}
	if _, ok, err := next.baker.Current(t.Context(), "base"); err != nil || !ok {
		t.Errorf("Current = %t, %v; want a snapshot of the new platform", ok, err)
	}
	next.stop()
	text := log.text.String()
	if !strings.Contains(text, "template is stale") || !strings.Contains(text, "template=base") {
		t.Errorf("log:\n%s", text)
	}
	builds := next.builds
	last := openFixture(t, first.dir, func(w *fixture) { w.platform, w.rebakeStale = "p2", true })
	if _, cold, err := last.baker.Ensure(t.Context(), "base"); err != nil || cold || builds > 1 {
		t.Errorf("Ensure of a current template = %t, %v", cold, err)
	}
}
