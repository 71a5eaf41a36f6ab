package e2b_test

import (
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// principal returns the principal of the fixture's key.
func (w *fixture) principal() auth.Principal {
	w.t.Helper()
	p, err := w.keys.Authenticate(w.t.Context(), w.key, netip.IPv6Loopback())
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// output runs a command in a sandbox and returns its output.
func (w *fixture) output(id, cmd string) string {
	w.t.Helper()
	g, err := w.boxes.Guest(w.t.Context(), w.principal(), api.SandboxID(id))
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := g.Start(w.t.Context(), guestapi.ProcessSpec{Shell: cmd})
	if err != nil {
		w.t.Fatal(err)
	}
	defer p.Close() //nolint:errcheck // the process has ended, or the test has
	var out strings.Builder
	for {
		e, err := p.Next(w.t.Context())
		if errors.Is(err, io.EOF) {
			return out.String()
		}
		if err != nil {
			w.t.Fatal(err)
		}
		out.Write(e.Data)
	}
}

// TestProgramsFindTheProtocol checks that programs find this protocol's variables and files in sandboxes that were made
// through it and in everything made from them, each with its own values. A sandbox that was made through another API
// does not have them, even if it is used through this one.
func TestProgramsFindTheProtocol(t *testing.T) {
	w := newFixture(t)
	const ask = "echo $V $E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID; cat /run/e2b/.E2B_SANDBOX; echo; " +
		"cat /run/e2b/.E2B_SANDBOX_ID; echo; cat /run/e2b/.E2B_TEMPLATE_ID"
	check := func(id, template string) {
		t.Helper()
		want := "1 true " + id + " " + template + "\ntrue\n" + id + "\n" + template
		if got := w.output(id, ask); got != want {
			t.Errorf("sandbox %s prints %q, want %q", id, got, want)
		}
	}
	made := w.create("/v2/sandboxes", `{"templateID":"base","envVars":{"V":"1"}}`).SandboxID
	check(made, "base")
	w.must(204, "POST", "/sandboxes/"+made+"/pause", "")
	w.must(201, "POST", "/sandboxes/"+made+"/connect", "")
	check(made, "base")
	forked, err := w.boxes.Fork(t.Context(), w.principal(), api.SandboxID(made), api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(string(forked.Children[0].ID), "base")
	snap, err := w.boxes.TakeSnapshot(t.Context(), w.principal(), api.SandboxID(made), api.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check(w.create("/v2/sandboxes", `{"templateID":"`+string(snap.ID)+`"}`).SandboxID, string(snap.ID))
	plain, err := w.boxes.Create(t.Context(), w.principal(), api.CreateRequest{FromSnapshot: snap.ID})
	if err != nil {
		t.Fatal(err)
	}
	check(string(plain.ID), "base")

	other, err := w.boxes.Create(t.Context(), w.principal(), api.CreateRequest{Env: map[string]string{"V": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	var token struct{ EnvdAccessToken string }
	w.decode(w.must(200, "POST", "/v2/sandboxes/"+string(other.ID)+"/connect", ""), &token)
	if err := w.listProcesses(string(other.ID), token.EnvdAccessToken); err != nil {
		t.Errorf("agent of a sandbox of another API returned %v, want no error", err)
	}
	if got := w.output(string(other.ID), "echo $V $E2B_SANDBOX $E2B_SANDBOX_ID"); got != "1\n" && got != "1  \n" {
		t.Errorf("a sandbox of another API prints %q, want no variables", got)
	}
}
