package walrelay

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/archive"
)

// A relay whose database another node has adopted stops by itself, also without anything to upload, and says so.
func TestFencedRelay(t *testing.T) {
	g := newRig(t)
	cfg := relayConfig(g.a, g.dir)
	cfg.Partial = time.Millisecond
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.Run(t.Context()) }()
	if _, err := newArchive(t, g.store).TakeFence(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil { // without an end of its context
		t.Error(err)
	}
	if got := r.Status(); got.State != Fenced || got.UploadError == "" {
		t.Errorf("the relay is %s (%s), want fenced", got.State, got.UploadError)
	}
	if err := r.Flush(t.Context(), 1<<40); !errors.Is(err, archive.ErrFenced) {
		t.Errorf("Flush = %v, want ErrFenced", err)
	}
}

// What a relay has in its spool when another node has adopted the database does not get into the archive.
func TestFencedSpool(t *testing.T) {
	g, l := newRig(t), sampleLog()
	r := g.relay()
	if _, err := run(r, l, l.End()); err != nil {
		t.Fatal(err)
	}
	if _, err := newArchive(t, g.store).TakeFence(t.Context(), noon); err != nil {
		t.Fatal(err)
	}
	halted := false
	r.uploadLoop(context.WithoutCancel(t.Context()), make(chan struct{}), func() { halted = true })
	c, err := g.a.Catalog(t.Context())
	if err != nil || len(c.Segments) != 0 || !halted {
		t.Errorf("halted %v; the archive has %v, %v; want nothing", halted, c.Segments, err)
	}
	if all, err := r.spool.files(); err != nil || len(all) != 2 {
		t.Errorf("the spool has %v, %v; want all of the log", all, err)
	}
}
