package watchdog_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/watchdog"
)

// host has one machine, "a", and notes what the watchdog says of it.
type host struct {
	*watchdog.Watchdog

	mu         sync.Mutex
	running    bool
	generation uint64
	hangs      bool
	err        error // of probes
	probes     int
	reports    []time.Time
}

func (h *host) Running() []watchdog.Machine {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running {
		return nil
	}
	return []watchdog.Machine{{ID: "a", Generation: h.generation}}
}

func (h *host) Probe(ctx context.Context, _ hostapi.MachineID) error {
	h.mu.Lock()
	h.probes++
	hangs, err := h.hangs, h.err
	h.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

func (h *host) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// said returns what was reported since the last call, and how often the guest was asked.
func (h *host) said() (reports []time.Time, probes int) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	reports, probes = h.reports, h.probes
	h.reports, h.probes = nil, 0
	return reports, probes
}

// watch calls f with a host whose watchdog runs, on a clock of its own.
func watch(t *testing.T, f func(t *testing.T, h *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &host{running: true, generation: 1}
		h.Watchdog = watchdog.New(watchdog.Config{}, h, func(_ hostapi.MachineID, since time.Time) {
			h.set(func() { h.reports = append(h.reports, since) })
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		f(t, h)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestIdleGuestIsLeftAlone checks that a guest that is asked nothing is hardly ever asked by the watchdog.
func TestIdleGuestIsLeftAlone(t *testing.T) {
	watch(t, func(t *testing.T, h *host) {
		<-time.After(time.Hour)
		if reports, probes := h.said(); len(reports) != 0 || probes < 20 || probes > 60 {
			t.Errorf("in an hour %d questions and the reports %v, want less than one a minute, and none",
				probes, reports)
		}
	})
}

func TestSilentGuestIsReportedAndRecovers(t *testing.T) {
	watch(t, func(t *testing.T, h *host) {
		h.set(func() { h.hangs = true })
		asked := time.Now()
		end := h.Ask("a")
		<-time.After(4 * time.Second)
		if reports, probes := h.said(); len(reports)+probes != 0 {
			t.Errorf("after 4 s: %d questions and reports %v, want none", probes, reports)
		}
		<-time.After(20 * time.Second)
		reports, probes := h.said()
		if len(reports) != 1 || !reports[0].Equal(asked) || !h.Unresponsive("a").Equal(asked) || probes == 0 {
			t.Errorf("after 24 s: reports %v, since %v; want one of %v", reports, h.Unresponsive("a"), asked)
		}
		<-time.After(time.Minute)
		if reports, _ := h.said(); len(reports) != 0 {
			t.Errorf("while it is silent: reports %v, want no further ones", reports)
		}
		h.set(func() { h.hangs = false })
		<-time.After(20 * time.Second)
		if reports, _ := h.said(); len(reports) != 1 || !reports[0].IsZero() || !h.Unresponsive("a").IsZero() {
			t.Errorf("after its recovery: reports %v, since %v; want one that the guest responds", reports,
				h.Unresponsive("a"))
		}
		end(true)
	})
}

// TestIdleGuestThatHangsIsFound checks that a guest need not be used to be found silent, and that an answer to anything
// is enough.
func TestIdleGuestThatHangsIsFound(t *testing.T) {
	watch(t, func(t *testing.T, h *host) {
		h.set(func() { h.hangs = true })
		<-time.After(5 * time.Minute)
		if reports, _ := h.said(); len(reports) != 1 || reports[0].IsZero() {
			t.Fatalf("reports %v, want that it does not answer", reports)
		}
		h.Ask("a")(true)
		if reports, _ := h.said(); len(reports) != 1 || !reports[0].IsZero() {
			t.Errorf("after an answer: reports %v, want one that the guest responds", reports)
		}
	})
}

// TestRequestThatIsGivenUp checks that a request that does not wait until the guest is suspect makes it so.
func TestRequestThatIsGivenUp(t *testing.T) {
	watch(t, func(t *testing.T, h *host) {
		h.set(func() { h.hangs = true })
		<-time.After(6 * time.Second)
		asked := time.Now()
		end := h.Ask("a")
		<-time.After(3 * time.Second)
		end(false)
		<-time.After(20 * time.Second)
		if reports, _ := h.said(); len(reports) != 1 || !reports[0].Equal(asked) {
			t.Errorf("reports %v, want one of %v", reports, asked)
		}
	})
}

// TestSlowRequestsAreNoSilence checks requests that take long, or end without an answer, of a guest that replies.
func TestSlowRequestsAreNoSilence(t *testing.T) {
	watch(t, func(t *testing.T, h *host) {
		end := h.Ask("a")
		h.Ask("a")(false)
		<-time.After(10 * time.Minute)
		if reports, _ := h.said(); len(reports) != 0 {
			t.Errorf("reports %v, want none", reports)
		}
		end(true)
	})
}

// TestNoSilenceWithoutAnOperation checks the errors of a probe that say nothing of the guest.
func TestNoSilenceWithoutAnOperation(t *testing.T) {
	for _, err := range []error{hostapi.ErrWrongState, hostapi.ErrNotFound, guestapi.ErrLost} {
		watch(t, func(t *testing.T, h *host) {
			h.set(func() { h.err = err })
			end := h.Ask("a")
			<-time.After(10 * time.Minute)
			if reports, _ := h.said(); len(reports) != 0 {
				t.Errorf("%v: reports %v, want none", err, reports)
			}
			end(false)
		})
	}
}

// TestSilenceEndsWithTheGuest checks that a machine that does not run, or has another guest, is not called silent.
func TestSilenceEndsWithTheGuest(t *testing.T) {
	for name, change := range map[string]func(h *host){
		"stopped":  func(h *host) { h.running = false },
		"restored": func(h *host) { h.generation++; h.hangs = false },
	} {
		watch(t, func(t *testing.T, h *host) {
			h.set(func() { h.err = errors.New("no answer") })
			<-time.After(5 * time.Minute)
			if h.Unresponsive("a").IsZero() {
				t.Fatal("the guest is not called silent")
			}
			h.said()
			h.set(func() { h.err = nil; change(h) })
			<-time.After(10 * time.Second)
			if reports, _ := h.said(); len(reports) != 1 || !reports[0].IsZero() || !h.Unresponsive("a").IsZero() {
				t.Errorf("%s: reports %v, since %v; want that nothing is known", name, reports, h.Unresponsive("a"))
			}
		})
	}
}
