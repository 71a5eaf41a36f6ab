//go:build root

package jail_test

import (
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
)

// BenchmarkStart measures how long a program takes to start as another user within limits,
// alternately with and without a jail. The difference of the medians is the cost of a jail.
func BenchmarkStart(b *testing.B) {
	f := newFixture(b, "pntcost")
	g := f.group("cost", jail.Limits{PIDs: 256, OpenFiles: 1024})
	plain := shell("exit 0")
	plain.UID, plain.GID = jailedUID, jailedUID
	inside := jailed(shell("exit 0"), g, jail.Spec{})
	measure := func(c proc.Command, enter bool) time.Duration {
		begin := time.Now()
		p, err := proc.Start(c)
		if err != nil {
			b.Fatal(err)
		}
		if enter {
			_ = g.Enter(p.PID()) // the process may have exited already
		}
		took := time.Since(begin)
		<-p.Done()
		if err := p.Release(); err != nil {
			b.Fatal(err)
		}
		return took
	}
	measure(inside, false) // copies the program
	var all [2][]time.Duration
	for b.Loop() {
		all[0] = append(all[0], measure(plain, true))
		all[1] = append(all[1], measure(inside, false))
	}
	middle := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds()) / 1000
	}
	b.ReportMetric(middle(all[0]), "plain-ms")
	b.ReportMetric(middle(all[1]), "jailed-ms")
	b.ReportMetric(middle(all[1])-middle(all[0]), "added-ms")
}
