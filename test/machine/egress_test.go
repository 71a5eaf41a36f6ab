//go:build vm

package machine

import (
	"fmt"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// begin is a program for guests: it prints how connections to addresses begin: "connected", "refused", or
// "away" for all else.
const begin = `python3 - <<'END'
import socket
for a in %q.split():
    host, port = a.rsplit(":", 1)
    s = socket.socket()
    s.settimeout(5)
    try:
        s.connect((host, int(port)))
        print("connected")
    except ConnectionRefusedError:
        print("refused")
    except OSError:
        print("away")
    s.close()
END`

// TestEgress holds a policy against a guest from its first instruction on, in its children and through a
// change and sleep. Nothing leaves the host: what is tried is refused on the way, or of the guest itself.
func TestEgress(t *testing.T) {
	l := host(t)
	const public = "9.9.9.9:81" // stands for the internet; no packet gets there
	shut := hostapi.Egress{Allow: []string{"allowed.example"}, DenyOthers: true}
	a := l.create(t, hostapi.Create{ID: "egress1", Persistent: true, Egress: shut})
	refused := func(id hostapi.MachineID, when string) {
		t.Helper()
		if got := l.run(t, id, fmt.Sprintf(begin, public)); got != "refused" {
			t.Errorf("%s: a connection to the internet was %s, want refused", when, got)
		}
		if m, err := l.Get(t.Context(), id); err != nil || m.Egress.IsZero() {
			t.Errorf("%s: the policy is %+v, %v", when, m.Egress, err)
		}
	}
	refused(a.ID, "created")
	got, err := l.Fork(t.Context(), hostapi.Fork{Parent: a.ID, Children: []hostapi.Child{{ID: "egress2"}}})
	if err != nil || got[0].Err != nil {
		t.Fatal(err, got)
	}
	refused("egress2", "forked")
	if err := l.Hibernate(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEgress(t.Context(), a.ID, hostapi.Egress{Deny: []string{"9.0.0.0/8"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Wake(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	refused(a.ID, "woken under another policy")
	if err := l.SetEgress(t.Context(), a.ID, hostapi.Egress{DenyOthers: true}); err != nil {
		t.Fatal(err)
	}
	refused(a.ID, "shut while it runs")
	for _, id := range []hostapi.MachineID{a.ID, "egress2"} {
		if err := l.Destroy(t.Context(), id, "test"); err != nil {
			t.Error(err)
		}
	}
}
