package conformance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Latency is how long something took, several times.
type Latency struct {
	Name  string        `json:"name"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P95   time.Duration `json:"p95_ns"`
	Most  time.Duration `json:"max_ns"`
}

// Report is one run of the suite.
type Report struct {
	Driver    vmm.Capabilities `json:"driver"`
	Results   []Result         `json:"results"`
	Latencies []Latency        `json:"latencies"`
}

// Passed tells whether every case did.
func (r Report) Passed() bool {
	return len(r.Results) > 0 && !slices.ContainsFunc(r.Results, func(r Result) bool { return len(r.Errs) > 0 })
}

// samples is how often each latency is taken.
const samples = 20

// Suite bakes a machine, holds the driver to every case, and measures. Each result is told to each, which
// may be nil, as it comes. Without a baked machine there is no other case.
func Suite(ctx context.Context, lab vmmtest.Lab, each func(Result)) Report {
	var report Report
	tell := func(r Result) bool {
		report.Results = append(report.Results, r)
		if each != nil {
			each(r)
		}
		return len(r.Errs) == 0
	}
	// The image lives until everything is over, so all of it runs inside the first case.
	outer := Run(ctx, "end", func(t vmmtest.TB) {
		var h *vmmtest.Host
		began := time.Now()
		baked := Run(ctx, "bake", func(inner vmmtest.TB) { h = vmmtest.Bake(longer{inner, t}, lab) })
		baked.Took = time.Since(began)
		if !tell(baked) {
			return
		}
		report.Driver = h.Driver.Capabilities()
		vmmtest.Run(h, func(name string, test func(vmmtest.TB)) {
			if ctx.Err() == nil {
				tell(Run(ctx, name, test))
			}
		})
		tell(Run(ctx, "measure", func(t vmmtest.TB) { report.Latencies = measure(t, h) }))
	})
	tell(outer)
	return report
}

// longer fails as one case does, and is cleaned up with another.
type longer struct {
	vmmtest.TB
	life vmmtest.TB
}

func (l longer) Context() context.Context { return l.life.Context() }
func (l longer) Cleanup(do func())        { l.life.Cleanup(do) }

// measure takes times of what users wait for.
func measure(t vmmtest.TB, h *vmmtest.Host) []Latency {
	names := []string{
		"restore until the guest runs",
		"restore until the guest is ready",
		"first program after a restore",
		"program",
		"pause of a parent for a fork",
		"fork until the child is ready",
	}
	took := make([][]time.Duration, len(names))
	for range samples {
		began := time.Now()
		var ran time.Duration
		m := h.RestoreStep(t, func() { ran = time.Since(began) })
		ready := time.Since(began)
		run := func() time.Duration {
			began := time.Now()
			if r := m.Run(t, "echo"); r.Exit.Code != 0 {
				t.Fatalf("echo ended with %+v", r.Exit)
			}
			return time.Since(began)
		}
		first := run()
		again := run()
		began = time.Now()
		var paused time.Duration
		child := h.ForkStep(t, m, 1, func(d time.Duration) { paused = d })[0]
		forked := time.Since(began)
		for i, d := range []time.Duration{ran, ready, first, again, paused, forked} {
			took[i] = append(took[i], d)
		}
		for _, one := range []*vmmtest.Machine{child, m} {
			if err := one.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	var all []Latency
	for i, name := range names {
		slices.Sort(took[i])
		n := len(took[i])
		all = append(all, Latency{name, n, took[i][n/2], took[i][n*95/100], took[i][n-1]})
	}
	return all
}

// Rows are the latencies as rows of SPECIFICATION.md.
func (r Report) Rows() string {
	out := "| what | driver | p50 | p95 |\n|---|---|---|---|\n"
	for _, l := range r.Latencies {
		out += fmt.Sprintf(
			"| %s | %s %s, %s | %.1f ms | %.1f ms |\n",
			l.Name,
			r.Driver.Name,
			r.Driver.Version,
			r.Driver.Accelerator,
			ms(l.P50),
			ms(l.P95),
		)
	}
	return out
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
