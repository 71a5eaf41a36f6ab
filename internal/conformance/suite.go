package conformance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Latency summarizes how long an operation took.
type Latency struct {
	Name  string        `json:"name"`
	Count int           `json:"count"`
	P50   time.Duration `json:"p50_ns"`
	P95   time.Duration `json:"p95_ns"`
	Most  time.Duration `json:"max_ns"`
}

// Report is the result of one run of the suite.
type Report struct {
	Driver    vmm.Capabilities `json:"driver"`
	Results   []Result         `json:"results"`
	Latencies []Latency        `json:"latencies"`
	// RefusedCalls are the names of system calls that monitors made in their jail and that are not allowed.
	RefusedCalls []string `json:"refused_calls,omitempty"`
}

// Passed reports whether every case passed.
func (r Report) Passed() bool {
	return len(r.Results) > 0 && !slices.ContainsFunc(r.Results, func(r Result) bool { return len(r.Errs) > 0 })
}

// samples is the number of measurements of each latency.
const samples = 20

// Suite bakes a machine, runs every case, and measures latencies. It calls each, which may be nil, after every case.
// If the bake fails, it runs no other case.
func Suite(ctx context.Context, lab vmmtest.Lab, each func(Result)) Report {
	var report Report
	record := func(r Result) bool {
		report.Results = append(report.Results, r)
		if each != nil {
			each(r)
		}
		return len(r.Errs) == 0
	}
	// The baked machine must exist until the end, so everything runs inside one outer case.
	outer := Run(ctx, "end", func(t vmmtest.TB) {
		var h *vmmtest.Host
		began := time.Now()
		baked := Run(ctx, "bake", func(inner vmmtest.TB) { h = vmmtest.Bake(bakeTB{inner, t}, lab) })
		baked.Took = time.Since(began)
		if !record(baked) {
			return
		}
		report.Driver = h.Driver.Capabilities()
		vmmtest.Run(h, func(name string, test func(vmmtest.TB)) {
			if ctx.Err() == nil {
				record(Run(ctx, name, test))
			}
		})
		record(Run(ctx, "measure", func(t vmmtest.TB) { report.Latencies = measure(t, h) }))
	})
	record(outer)
	return report
}

// bakeTB reports failures to the embedded TB, and takes context and cleanups from outer, which ends later.
type bakeTB struct {
	vmmtest.TB
	outer vmmtest.TB
}

func (l bakeTB) Context() context.Context { return l.outer.Context() }
func (l bakeTB) Cleanup(do func())        { l.outer.Cleanup(do) }

// measure measures the operations that users wait for.
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
				t.Fatalf("exit of echo = %+v, want code 0", r.Exit)
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

// Rows returns the latencies as rows of a table in SPECIFICATION.md.
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
