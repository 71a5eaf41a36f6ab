package sandbox_test

import (
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// A caller who has only the id of a sandbox is admitted by what the sandbox allows, before anything happens to it.
func TestOpenForIngress(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{Persistent: true})
	if _, err := w.Hibernate(t.Context(), alice, s.ID); err != nil {
		t.Fatal(err)
	}
	no := api.Errorf(api.Forbidden, "not you")
	for _, c := range []struct {
		id   api.SandboxID
		deny error
		want api.Code
		then api.Status
	}{
		{"sbxnobody", nil, api.NotFound, api.Hibernated},
		{s.ID, no, api.Forbidden, api.Hibernated},
		{s.ID, nil, "", api.Running},
	} {
		asked := false
		g, _, err := w.OpenForIngress(t.Context(), c.id, func(p auth.Principal, b api.Sandbox) error {
			asked = true
			if p.Workspace != alice.Workspace || b.ID != s.ID || b.Status != api.Hibernated {
				t.Errorf("admit was asked about %s, %s, in the name of %s", b.ID, b.Status, p.Workspace)
			}
			return c.deny
		})
		if c.want != "" && api.CodeOf(err) != c.want || (c.want == "") != (err == nil) || (err == nil) != (g != nil) {
			t.Errorf("%s: %v and %v, want %q", c.id, g, err, c.want)
		}
		if asked != (c.id == s.ID) {
			t.Errorf("%s: admit was asked: %v", c.id, asked)
		}
		if got := w.status(alice, s.ID); got != c.then {
			t.Errorf("after that it is %s, want %s", got, c.then)
		}
	}
	w.clean(s.ID)
}
