package repo_test

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/app"
	"github.com/pandastack/pandastack/internal/control/app/repo"
	"github.com/pandastack/pandastack/internal/control/app/repo/repotest"
)

var shop = api.App{ID: api.NewAppID(), Name: "shop", Workspace: "w", GitBranch: "trunk"}

func newService(t *testing.T, m *repotest.Machines) *repo.Service {
	t.Helper()
	s, err := repo.New(repo.Config{Template: "base", VolumeMiB: 64, PushMiB: 1}, m, m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// refs asks for the refs of the repository.
func refs(t *testing.T, s *repo.Service, p repo.Program) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := s.Serve(t.Context(), shop, repo.Request{Program: p, Advertise: true, Out: &out})
	return out.String(), err
}

func count(m *repotest.Machines, call string) (n int) {
	m.Locked(func() {
		for _, c := range m.Calls {
			if c == call {
				n++
			}
		}
	})
	return n
}

func TestMachineIsMadeOnceAndEnds(t *testing.T) {
	m := repotest.New(t)
	s := newService(t, m)
	for range 3 {
		out, err := refs(t, s, repo.ReceivePack)
		if err != nil || !strings.Contains(out, "report-status") {
			t.Fatalf("%v: %q", err, out)
		}
	}
	if n := count(m, "create"); n != 1 {
		t.Errorf("%d machines were made, want 1", n)
	}
	owner := hostapi.Owner{Kind: app.OwnerKind, ID: string(shop.ID)}
	if !slices.Equal(m.Owners, []hostapi.Owner{owner, owner}) {
		t.Errorf("volume and machine belong to %v", m.Owners)
	}
	made := m.Created[0]
	if made.Egress == nil || *made.Egress || made.Metadata[app.RoleKey] != repo.Role || made.TTLSeconds == nil ||
		len(made.Volumes) != 1 || made.Volumes[0].Name != repo.VolumeName(shop.ID) || made.Volumes[0].ReadOnly {
		t.Errorf("made %+v", made)
	}
	s.EndIdle(t.Context(), 0)
	if len(m.Boxes) != 0 || count(m, "detach") != 1 {
		t.Errorf("%d machines are left, %d volumes unmounted", len(m.Boxes), count(m, "detach"))
	}
	if _, err := refs(t, s, repo.UploadPack); err != nil {
		t.Fatal(err)
	}
	if n := count(m, "create volume"); n != 1 {
		t.Errorf("%d volumes were made, want 1", n)
	}
}

func TestNextProcessUsesOrReplacesMachine(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(*repotest.Machines)
		made  int
	}{
		"that runs":   {func(*repotest.Machines) {}, 1},
		"that failed": {func(m *repotest.Machines) { setStatus(m, api.Failed) }, 2},
		"that ended":  {func(m *repotest.Machines) { clear(m.Boxes) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			m := repotest.New(t)
			if _, err := refs(t, newService(t, m), repo.UploadPack); err != nil {
				t.Fatal(err)
			}
			m.Locked(func() { c.leave(m) })
			if _, err := refs(t, newService(t, m), repo.UploadPack); err != nil {
				t.Fatal(err)
			}
			if n := count(m, "create"); n != c.made || len(m.Boxes) != 1 {
				t.Errorf("%d machines were made, want %d; %d are left", n, c.made, len(m.Boxes))
			}
		})
	}
}

func setStatus(m *repotest.Machines, to api.Status) {
	for id, b := range m.Boxes {
		b.Status = to
		m.Boxes[id] = b
	}
}

func TestMachineThatVanished(t *testing.T) {
	m := repotest.New(t)
	s := newService(t, m)
	if _, err := refs(t, s, repo.UploadPack); err != nil {
		t.Fatal(err)
	}
	m.Locked(func() { clear(m.Boxes) })
	if _, err := refs(t, s, repo.UploadPack); err != nil {
		t.Fatal(err)
	}
	if n := count(m, "create"); n != 2 {
		t.Errorf("%d machines were made, want 2", n)
	}
}

// TestFailureAtEachCall: whatever fails, the next request is answered, and no second machine is left.
func TestFailureAtEachCall(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, call := range []string{"list", "create volume", "create", "guest"} {
		t.Run(call, func(t *testing.T) {
			m := repotest.New(t)
			s := newService(t, m)
			m.Locked(func() { m.Fail[call] = broken })
			if _, err := refs(t, s, repo.UploadPack); err == nil {
				t.Error("the request was answered")
			}
			m.Locked(func() { delete(m.Fail, call) })
			if _, err := refs(t, s, repo.UploadPack); err != nil {
				t.Fatal(err)
			}
			s.EndIdle(t.Context(), 0)
			if len(m.Boxes) != 0 {
				t.Errorf("%d machines are left", len(m.Boxes))
			}
		})
	}
	m := repotest.New(t)
	s := newService(t, m)
	if _, err := refs(t, s, repo.UploadPack); err != nil {
		t.Fatal(err)
	}
	m.Locked(func() { m.Fail["delete"] = broken })
	s.EndIdle(t.Context(), 0)
	m.Locked(func() { delete(m.Fail, "delete") })
	s.EndIdle(t.Context(), 0)
	if len(m.Boxes) != 0 {
		t.Errorf("%d machines are left", len(m.Boxes))
	}
}

func TestGitThatFailsIsExplained(t *testing.T) {
	s := newService(t, repotest.New(t))
	var out bytes.Buffer
	err := s.Serve(t.Context(), shop, repo.Request{
		Program: repo.ReceivePack, In: strings.NewReader("nonsense"), Out: &out,
	})
	if api.CodeOf(err) != api.Invalid || !strings.Contains(err.Error(), "protocol error") {
		t.Errorf("got %v", err)
	}
}
