package depot

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/chunk"
)

// FuzzDescribe reads what a manifest says of a snapshot.
func FuzzDescribe(f *testing.F) {
	f.Add([]byte(`{"version":1,"ref":"snapshots/a","root":"tplx","manifest":{"files":[{"name":"memory","bytes":4}]}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, meta []byte) {
		m := &chunk.Manifest{ID: "a", Meta: meta}
		if _, err := describe(m); err != nil && !errors.Is(err, chunk.ErrVersion) {
			t.Errorf("%q: %v", meta, err)
		}
		if rootOf(&chunk.Base{Manifest: m}) == "" {
			t.Errorf("%q begins with nothing", meta)
		}
	})
}
