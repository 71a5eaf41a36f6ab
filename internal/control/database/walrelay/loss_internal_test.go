package walrelay

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/control/database/wal"
)

// TestLossOfHost reads the archive alone, as after the loss of the host with its spool, at many moments of a log that
// goes on: it lacks at most what came in the last 5 s.
func TestLossOfHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, l := newRig(t), sampleLog()
		r := g.relay()
		if r.cfg.Partial != 5*time.Second {
			t.Fatalf("an incomplete segment is uploaded after %v; the documents say 5 s", r.cfg.Partial)
		}
		ended := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() { r.uploadLoop(t.Context(), ended, func() {}) })
		defer group.Wait()
		defer close(ended)
		const record = 60_100 // one that is not whole is left out of a segment that no stream has open
		type moment struct {
			at  time.Time
			end wal.LSN
		}
		var received []moment
		checked := 0
		for end := l.Start(); end < l.End(); {
			end = min(end+700_000, l.End())
			if _, err := run(r, l, end); err != nil {
				t.Fatal(err)
			}
			received = append(received, moment{time.Now(), end})
			<-time.After(700 * time.Millisecond)
			synctest.Wait()
			for len(received) > 1 && time.Since(received[1].at) >= r.cfg.Partial {
				received = received[1:]
			}
			if first := received[0]; time.Since(first.at) >= r.cfg.Partial {
				g.checkArchive(l, first.end-record)
				checked++
			}
		}
		if checked < 15 {
			t.Errorf("the archive was read at %d moments", checked)
		}
	})
}
