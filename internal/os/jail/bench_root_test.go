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
// alternately without a jail, in one with the list of denied calls and in one with a list of allowed calls. The
// differences of the medians are the costs.
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
	listed := jailed(shell("exit 0"), g, jail.Spec{Syscalls: goPolicy(b)})
	measure(inside, false) // copies the program
	var all [3][]time.Duration
	for b.Loop() {
		all[0] = append(all[0], measure(plain, true))
		all[1] = append(all[1], measure(inside, false))
		all[2] = append(all[2], measure(listed, false))
	}
	middle := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds()) / 1000
	}
	b.ReportMetric(middle(all[0]), "plain-ms")
	b.ReportMetric(middle(all[1]), "jailed-ms")
	b.ReportMetric(middle(all[1])-middle(all[0]), "added-ms")
	b.ReportMetric(middle(all[2])-middle(all[1]), "added-by-list-ms")
}
