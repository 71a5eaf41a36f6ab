package fake_test

import (
	"testing"

	"github.com/pandastack/pandastack/internal/guest/guesttest"
	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// TestGuest runs the conformance tests of guests against the fake one.
func TestGuest(t *testing.T) {
	h := vmmtest.Bake(t, lab(t, fake.New()))
	guesttest.Basic(t, func(t *testing.T) guesttest.Env {
		m := h.Restore(t)
		t.Cleanup(func() { _ = m.Kill(t.Context()) }) // it ends with its driver
		if _, err := m.Link.MakeDir(t.Context(), "/tmp/suite", "root"); err != nil {
			t.Fatal(err)
		}
		return guesttest.Env{Guest: m.Link, Dir: "/tmp/suite", User: "root"}
	})
}
