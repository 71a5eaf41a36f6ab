package sandbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/os/egress"
)

// networksMatch checks that every machine may reach what its sandbox is said to reach.
func (w *fixture) networksMatch() {
	w.t.Helper()
	for _, m := range w.host.Machines() {
		s, err := w.Get(w.t.Context(), alice, api.SandboxID(m.ID))
		if err != nil {
			continue // of no row: other checks look at that
		}
		var n api.Network
		if s.Network != nil {
			n = *s.Network
		}
		if !n.Equal(api.Network{AllowOut: m.Egress.Allow, DenyOut: m.Egress.Deny, DenyOthers: m.Egress.DenyOthers}) ||
			s.Egress == n.BlocksAll() {
			w.t.Errorf("sandbox %s: egress %v, network %+v; its machine has %+v", s.ID, s.Egress, n, m.Egress)
		}
	}
}

// reach fails unless a sandbox and its machine have a policy.
func (w *fixture) reach(id api.SandboxID, want api.Network) {
	w.t.Helper()
	n, err := w.Network(w.t.Context(), alice, id)
	if err != nil || !n.Equal(want) {
		w.t.Errorf("network of %s is %+v, %v; want %+v", id, n, err, want)
	}
	w.networksMatch()
}

func TestNetwork(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	few := api.Network{AllowOut: []string{"packages.example.com", "*.example.com", "192.0.2.0/24"}, DenyOthers: true}
	shut := api.Network{DenyOthers: true}

	open := w.create(alice, api.CreateRequest{})
	if open.Network != nil || !open.Egress {
		t.Errorf("a sandbox without a policy shows %+v, egress %v", open.Network, open.Egress)
	}
	closed := w.create(alice, api.CreateRequest{Egress: p(false)})
	if closed.Network == nil || !closed.Network.Equal(shut) || closed.Egress {
		t.Errorf("a sandbox without egress shows %+v, egress %v", closed.Network, closed.Egress)
	}
	s := w.create(alice, api.CreateRequest{Network: &few, Persistent: true})
	if s.Network == nil || !s.Network.Equal(few) || !s.Egress {
		t.Errorf("a restricted sandbox shows %+v, egress %v", s.Network, s.Egress)
	}
	child, err := w.Fork(ctx, alice, s.ID, api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w.reach(child.Sandbox.ID, few)

	no := api.Network{DenyOut: []string{"198.51.100.7"}}
	if got, err := w.SetNetwork(ctx, alice, s.ID, no); err != nil || !got.Equal(no) {
		t.Fatalf("set: %+v, %v", got, err)
	}
	w.reach(s.ID, no)
	events, err := w.Events(ctx, alice, s.ID, sandbox.EventQuery{Tail: 1})
	if err != nil || len(events) != 1 || events[0].Type != api.EventNetwork {
		t.Errorf("the last event is %+v, %v", events, err)
	}
	w.reach(child.Sandbox.ID, few)
	if _, err := w.Hibernate(ctx, alice, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := w.SetNetwork(ctx, alice, s.ID, shut); err != nil {
		t.Fatal(err)
	}
	w.reach(s.ID, shut)
	if _, err := w.SetNetwork(ctx, alice, s.ID, api.Network{}); err != nil {
		t.Fatal(err)
	}
	w.reach(s.ID, api.Network{})
}

func TestNetworkRefused(t *testing.T) {
	w := newFixture(t)
	ctx := t.Context()
	bad := api.Network{DenyOut: []string{"https://a.example"}}
	_, err := w.Create(ctx, alice, api.CreateRequest{Network: &bad})
	if e := wantCode(t, err, api.Invalid, "create with a bad entry"); e.Details["field"] != "network.deny_out" {
		t.Errorf("details %v do not name the field", e.Details)
	}
	s := w.create(alice, api.CreateRequest{Egress: p(false)})
	_, err = w.SetNetwork(ctx, alice, s.ID, bad)
	if e := wantCode(t, err, api.Invalid, "change to a bad entry"); e.Details["field"] != "deny_out" {
		t.Errorf("details %v do not name the field", e.Details)
	}
	w.host.Fail("setegress", errors.New("broke"))
	_, err = w.SetNetwork(ctx, alice, s.ID, api.Network{})
	wantCode(t, err, api.Internal, "change that the host refuses")
	w.reach(s.ID, api.Network{DenyOthers: true})
}

// TestNetworkComesBack holds that a machine gets the policy of its row.
func TestNetworkComesBack(t *testing.T) {
	w := newFixture(t)
	s := w.create(alice, api.CreateRequest{Egress: p(false)})
	if err := w.host.SetEgress(t.Context(), hostapi.MachineID(s.ID), hostapi.Egress{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.reach(s.ID, api.Network{DenyOthers: true})
}

// TestNetworkEntries holds that what the API lets through is what hosts take, and the other way round.
func TestNetworkEntries(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, e := range []string{
		"example.com", "EXAMPLE.com.", "*.example.com", "a_b.example", "localhost", "*.com", long + ".com",
		"xn--bcher-kva.example",
		"192.0.2.1", "192.0.2.0/24", "192.0.2.1/24", "0.0.0.0/0", "_dmarc.example.com", "1a.2b",
		"", "*", "*.", ".", "a..b", ".example.com", "-a.example", "a-.example", "*.*.example", "a.*.example",
		long + "a.com",
		"bücher.example", "https://a.example", "a.example:443", "a.example/x", "1.2.3", "1.2.3.4.5",
		"192.0.2.256", "192.0.2.0/33",
		"::1", "2001:db8::/32", "::ffff:192.0.2.1", " a.example", "a b", "a.example\n", strings.Repeat("a.",
			130) + "com", "a.b.", "a..",
	} {
		n := api.Network{DenyOut: []string{e}}
		_, host := egress.Compile(egress.Policy{Deny: n.DenyOut})
		if face := n.Validate(); (face == nil) != (host == nil) {
			t.Errorf("%q: the API says %v, hosts say %v", e, face, host)
		}
	}
	many := make([]string, api.MaxNetworkEntries+1)
	for i := range many {
		many[i] = "a.example"
	}
	for _, list := range [][]string{many, many[1:]} {
		n := api.Network{DenyOut: list}
		_, host := egress.Compile(egress.Policy{Deny: list})
		if face := n.Validate(); (face == nil) != (host == nil) {
			t.Errorf("%d entries: the API says %v, hosts say %v", len(list), face, host)
		}
	}
}
