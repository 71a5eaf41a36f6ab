//go:build vm

package qemu_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// median reports the median in milliseconds, because means say little on a shared machine.
func median(b *testing.B, name string, all []time.Duration) {
	b.Helper()
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-ms")
	b.ReportMetric(float64(all[0].Microseconds())/1000, name+"-min-ms")
}

func execTrue(b *testing.B, m *vmmtest.Machine) {
	b.Helper()
	p, err := m.Link.Start(b.Context(), guestapi.ProcessSpec{Argv: []string{"/bin/true"}})
	if err != nil {
		b.Fatal(err)
	}
	if r, err := vmmtest.Collect(b.Context(), p); err != nil || r.Exit.Code != 0 {
		b.Fatalf("true in the guest: %+v, %v", r, err)
	}
}

// warmLab returns a lab whose image has run the measured operation before.
func warmLab(b *testing.B) vmmtest.Lab {
	b.Helper()
	l := lab(b)
	l.Warm = func(_ vmmtest.TB, m *vmmtest.Machine) {
		for range 3 {
			execTrue(b, m)
		}
	}
	return l
}

func BenchmarkRestore(b *testing.B) {
	h := vmmtest.Bake(b, warmLab(b))
	var loaded, ready, first, again []time.Duration
	for b.Loop() {
		start := time.Now()
		m := h.RestoreStep(b, func() { loaded = append(loaded, time.Since(start)) })
		ready = append(ready, time.Since(start))
		execTrue(b, m)
		first = append(first, time.Since(start))
		start = time.Now()
		execTrue(b, m)
		again = append(again, time.Since(start))
		if err := m.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	median(b, "loaded", loaded)
	median(b, "ready", ready)
	median(b, "first-exec", first)
	median(b, "second-exec", again)
}

func BenchmarkFork(b *testing.B) {
	h := vmmtest.Bake(b, warmLab(b))
	parent := h.Restore(b)
	execTrue(b, parent)
	var pause, ready []time.Duration
	for b.Loop() {
		start := time.Now()
		child := h.ForkStep(b, parent, 1, func(d time.Duration) { pause = append(pause, d) })[0]
		ready = append(ready, time.Since(start))
		if err := child.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	median(b, "pause", pause)
	median(b, "ready", ready)
}

func BenchmarkHibernate(b *testing.B) {
	h := vmmtest.Bake(b, warmLab(b))
	m := h.Restore(b)
	execTrue(b, m)
	var rest, wake []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := m.Link.Freeze(b.Context(), true); err != nil {
			b.Fatal(err)
		}
		if err := m.Pause(b.Context()); err != nil {
			b.Fatal(err)
		}
		image, disk := h.Save(b, m)
		if err := m.Kill(b.Context()); err != nil {
			b.Fatal(err)
		}
		rest = append(rest, time.Since(start))
		start = time.Now()
		m = h.RestoreFrom(b, image, disk)
		execTrue(b, m)
		wake = append(wake, time.Since(start))
	}
	median(b, "hibernate", rest)
	median(b, "wake-to-exec", wake)
}
