//go:build root

package netslot

import (
	"context"
	"testing"

	"github.com/pandastack/pandastack/internal/os/egress"
)

func BenchmarkSlot(b *testing.B) {
	w := newFixture(b)
	ctx := context.Background()
	b.Run("build and demolish", func(b *testing.B) {
		p := w.pool(nil)
		defer w.closePool(p)
		for b.Loop() {
			s, err := p.build(ctx, 0)
			w.must(err)
			w.must(p.destroyNamespace(s))
		}
	})
	b.Run("take and give", func(b *testing.B) {
		p := w.pool(nil)
		defer w.closePool(p)
		for b.Loop() {
			w.must(p.Release(ctx, w.take(p)))
		}
	})
	b.Run("set policy", func(b *testing.B) {
		p := w.pool(nil)
		defer w.closePool(p)
		s := w.take(p)
		for b.Loop() {
			w.must(s.SetPolicy(ctx, egress.Policy{Allow: []string{"a.com", "1.2.3.4"}, DenyOthers: true}))
		}
		w.must(p.Release(ctx, s))
	})
}
