package budget_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pandastack/pandastack/internal/lib/budget"
)

func newPool(total int64, change ...func(*budget.Config)) *budget.Pool {
	cfg := budget.Config{
		Name: "bytes", Total: total,
		Levels:  []budget.Level{{Name: "workspace"}, {Name: "sandbox"}},
		Account: budget.Level{Name: "request"},
	}
	for _, f := range change {
		f(&cfg)
	}
	return budget.New(cfg)
}

// takeAll takes units one by one until that is refused, and returns how many it got.
func takeAll(t *testing.T, a *budget.Account) (n int64, last *budget.Error) {
	t.Helper()
	for {
		err := a.Take(1)
		if err == nil {
			n++
			continue
		}
		if !errors.As(err, &last) {
			t.Fatalf("Take() = %v, want a *budget.Error", err)
		}
		return n, last
	}
}

// However many owners take all they can, the next one gets an equal part of what is left, and never nothing.
func TestGreedyOwnersLeaveAShare(t *testing.T) {
	const total = 1 << 12
	p := newPool(total)
	sum := int64(0)
	for i := range 8 {
		n, last := takeAll(t, p.Open(fmt.Sprint("workspace", i)))
		if want := (total - sum) / 2; n != want {
			t.Errorf("owner %d got %d of the %d that were left, want %d", i, n, total-sum, want)
		}
		if last.Level != "workspace" || last.Used != n || last.Allowed != n || last.Never {
			t.Errorf("owner %d was refused with %+v, want its workspace with %d of %d", i, last, n, n)
		}
		sum += n
	}
	if got := p.Used(); got != sum {
		t.Errorf("Used() = %d, want %d", got, sum)
	}
}

// Owners that take turns end with equal shares, each as large as what is left.
func TestOwnersShareEqually(t *testing.T) {
	const owners, total = 4, 1000
	p := newPool(total)
	var all []*budget.Account
	for i := range owners {
		all = append(all, p.Open(fmt.Sprint(i)))
	}
	for range total {
		for _, a := range all {
			_ = a.Take(1) // refused at the end
		}
	}
	for i, a := range all {
		if got, want := a.Held(), int64(total/(owners+1)); got < want-1 || got > want+1 {
			t.Errorf("owner %d holds %d, want %d", i, got, want)
		}
	}
}

func TestLevelsAndRequests(t *testing.T) {
	p := newPool(1000, func(c *budget.Config) {
		c.Levels[1].Max = 100
		c.Account.Max = 60
	})
	first, second := p.Open("w", "s"), p.Open("w", "s")
	n, last := takeAll(t, first)
	if n != 60 || last.Level != "request" || !last.Never || last.Allowed != 60 || last.Used != 60 {
		t.Errorf("one request got %d and then %+v, want 60 and the bound of a request", n, last)
	}
	if n, last := takeAll(t, second); n != 40 || last.Level != "sandbox" || last.Owner != "s" || last.Never {
		t.Errorf("another request of the sandbox got %d and then %+v, want 40 and the bound of a sandbox", n, last)
	}
	if n, _ := takeAll(t, p.Open("w", "other")); n != 60 {
		t.Errorf("a request of another sandbox got %d, want 60", n)
	}
	var want *budget.Error
	if err := p.Open("w", "third").Take(61); !errors.As(err, &want) || !strings.Contains(err.Error(), "at most 60") {
		t.Errorf("a request for 61 = %v, want the bound", err)
	}
}

// One sandbox does not take all of its workspace's share.
func TestSandboxLeavesAShareOfItsWorkspace(t *testing.T) {
	p := newPool(1000)
	if n, last := takeAll(t, p.Open("w", "hostile")); n != 250 || last.Level != "sandbox" {
		t.Errorf("a sandbox got %d and then %+v, want half of its workspace's 500", n, last)
	}
	if n, _ := takeAll(t, p.Open("w", "other")); n != 125 {
		t.Errorf("the next sandbox got %d, want half of the rest", n)
	}
}

func TestGiveAndClose(t *testing.T) {
	p := newPool(100)
	a := p.Open("w", "s")
	if err := a.Take(20); err != nil {
		t.Fatal(err)
	}
	a.Give(5)
	if got := a.Held(); got != 15 {
		t.Errorf("Held() = %d after 20 were taken and 5 returned, want 15", got)
	}
	a.Give(1000) // more than held returns what is held, not more
	if got := p.Used(); got != 0 {
		t.Errorf("Used() = %d, want 0", got)
	}
	if err := a.Take(7); err != nil {
		t.Fatal(err)
	}
	a.Close()
	a.Close()
	a.Give(7)
	if got := p.Used(); got != 0 {
		t.Errorf("Used() = %d after Close, want 0", got)
	}
	if err := a.Take(1); !errors.Is(err, budget.ErrClosed) {
		t.Errorf("Take() after Close = %v, want %v", err, budget.ErrClosed)
	}
	if err := p.Open("w").Take(-1); err == nil {
		t.Error("Take(-1) succeeded")
	}
}

func TestNilLimitsNothing(t *testing.T) {
	var p *budget.Pool
	a := p.Open("w")
	if err := a.Take(1 << 62); err != nil || a.Held() != 0 || p.Used() != 0 || p.Total() != 0 {
		t.Errorf("Take() = %v", err)
	}
	a.Give(1)
	a.Close()
	if got := budget.FromContext(t.Context()); got != nil {
		t.Errorf("FromContext() = %v, want nil", got)
	}
	b := newPool(1).Open()
	if got := budget.FromContext(budget.NewContext(context.Background(), b)); got != b {
		t.Errorf("FromContext() = %p, want %p", got, b)
	}
}

// Whatever is done in whatever order, the sums fit, no bound is exceeded, and nothing is left when all have closed.
func TestSumsHold(t *testing.T) {
	const total, request = 10_000, 900
	p := newPool(total, func(c *budget.Config) { c.Account.Max = request })
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			var open []*budget.Account
			for range 5000 {
				switch {
				case len(open) == 0 || len(open) < 20 && r.IntN(4) == 0:
					open = append(open, p.Open(fmt.Sprint(r.IntN(3)), fmt.Sprint(r.IntN(3))))
				case r.IntN(8) == 0:
					i := r.IntN(len(open))
					open[i].Close()
					open = append(open[:i], open[i+1:]...)
				case r.IntN(2) == 0:
					open[r.IntN(len(open))].Give(r.Int64N(300))
				default:
					a := open[r.IntN(len(open))]
					_ = a.Take(r.Int64N(300)) // may be refused
					if held := a.Held(); held > request {
						t.Errorf("a request holds %d, want at most %d", held, request)
					}
				}
				if used := p.Used(); used < 0 || used > total {
					t.Errorf("Used() = %d, want at most %d", used, total)
				}
			}
			for _, a := range open {
				a.Close()
			}
		})
	}
	wg.Wait()
	if used := p.Used(); used != 0 {
		t.Errorf("Used() = %d after all accounts were closed, want 0", used)
	}
	if n := p.Owners(); n != 0 {
		t.Errorf("%d owners are remembered after all accounts were closed", n)
	}
}

func TestCollector(t *testing.T) {
	p := newPool(100)
	takeAll(t, p.Open("big"))
	takeAll(t, p.Open("small"))
	reg := prometheus.NewRegistry()
	reg.MustRegister(budget.Collector{p})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		got[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	want := map[string]float64{
		"pandastack_budget_total": 100, "pandastack_budget_used": 75,
		"pandastack_budget_largest_owner": 50, "pandastack_budget_refused_total": 2,
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s = %v, want %v", name, got[name], v)
		}
	}
}

func BenchmarkTakeGive(b *testing.B) {
	a := newPool(1000).Open("w", "s")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if a.Take(1) == nil {
				a.Give(1)
			}
		}
	})
}

func TestReaderPaysForWhatItReads(t *testing.T) {
	a := newPool(1000, func(c *budget.Config) { c.Account.Max = 100 }).Open("w", "s")
	b, err := io.ReadAll(a.Reader(strings.NewReader("0123456789"), 3))
	if err != nil || len(b) != 10 || a.Held() != 30 {
		t.Errorf("ReadAll() = %q, %v with %d units, want all for 30", b, err, a.Held())
	}
	var over *budget.Error
	b, err = io.ReadAll(a.Reader(strings.NewReader(strings.Repeat("x", 71)), 1))
	if !errors.As(err, &over) || len(b) != 0 || a.Held() != 30 {
		t.Errorf("ReadAll() = %d bytes, %v with %d units, want a refusal", len(b), err, a.Held())
	}
}
