package remote

import (
	"errors"
	"testing"

	"github.com/pandastack/pandastack/internal/host/chunkstore"
)

// FuzzDescribe decodes a manifest's description of a snapshot.
func FuzzDescribe(f *testing.F) {
	f.Add([]byte(`{"version":1,"ref":"snapshots/a","root":"tplx","manifest":{"files":[{"name":"memory","bytes":4}]}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, meta []byte) {
		m := &chunkstore.Manifest{ID: "a", Meta: meta}
		if _, err := describe(m); err != nil && !errors.Is(err, chunkstore.ErrVersion) {
			t.Errorf("describe(%q): got %v, want nil or ErrVersion", meta, err)
		}
		if rootOf(&chunkstore.Base{Manifest: m}) == "" {
			t.Errorf("rootOf(%q) = \"\", want an id", meta)
		}
	})
}
