//go:build vm

package machine

import (
	"fmt"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// begin is a program for guests: it prints how connections to addresses begin: "connected", "refused", or "away" for
// everything else.
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

// TestEgress checks a policy from the guest's first instruction on, in its children and through a change and a
// hibernation. Nothing leaves the host: every attempt is refused on the way, or goes to the guest itself.
func TestEgress(t *testing.T) {
	l := host(t)
	const public = "9.9.9.9:81" // in place of the internet; no packet reaches it
	shut := hostapi.Egress{Allow: []string{"allowed.example"}, DenyOthers: true}
	a := l.create(t, hostapi.Create{ID: "egress1", Persistent: true, Egress: shut})
	refused := func(id hostapi.MachineID, when string) {
		t.Helper()
		if got := l.run(t, id, fmt.Sprintf(begin, public)); got != "refused" {
			t.Errorf("%s: connection to the internet = %s, want refused", when, got)
		}
		if m, err := l.Get(t.Context(), id); err != nil || m.Egress.IsZero() {
			t.Errorf("%s: policy = %+v, %v; want that of the request", when, m.Egress, err)
		}
	}
	refused(a.ID, "created")
	got, err := l.Fork(t.Context(), hostapi.Fork{Parent: a.ID, Children: []hostapi.Child{{ID: "egress2"}}})
	if err != nil || got[0].Err() != nil {
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
