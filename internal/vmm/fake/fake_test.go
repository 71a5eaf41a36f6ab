package fake_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

func lab(t *testing.T, d *fake.Driver) vmmtest.Lab {
	t.Helper()
	return vmmtest.Lab{
		Dir:     t.TempDir(),
		Open:    func(vmmtest.TB) vmm.Driver { return d },
		Abandon: func(vmmtest.TB, vmm.Driver) {},
		Crash: func(t vmmtest.TB, m vmm.Machine) {
			for _, id := range d.Monitors() {
				d.Crash(id, errors.New("killed from outside"))
			}
		},
		Spec: vmm.Spec{VCPUs: 1, MemoryMiB: 64},
		Disk: func(t vmmtest.TB, path string) {
			if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(t vmmtest.TB, from *os.File, to string) {},
	}
}

func TestConformance(t *testing.T) {
	d := fake.New()
	vmmtest.Run(
		vmmtest.Bake(t, lab(t, d)),
		func(name string, test func(vmmtest.TB)) { t.Run(name, func(t *testing.T) { test(t) }) },
	)
	if left := d.Monitors(); len(left) != 0 {
		t.Errorf("monitors = %v, want none", left)
	}
}

func TestShell(t *testing.T) {
	h := vmmtest.Bake(t, lab(t, fake.New()))
	m := h.Restore(t)
	for _, c := range []struct {
		name, script, stdout string
		code                 int
	}{
		{"echo", `echo a "b c"`, "a b c\n", 0},
		{"variable", `X=1; echo $X '$X' "${X}2"`, "1 $X 12\n", 0},
		{"and", `true && echo yes`, "yes\n", 0},
		{"or", `false || echo no`, "no\n", 0},
		{"skipped", `false && echo never`, "", 1},
		{"status", `false; echo $?`, "1\n", 0},
		{"exit", `echo a; exit 4; echo b`, "a\n", 4},
		{"write", `echo hi > /tmp/f; echo there >> /tmp/f; cat /tmp/f`, "hi\nthere\n", 0},
		{"read", `printf abc > /tmp/g; cat < /tmp/g`, "abc", 0},
		{"directory", `mkdir -p /tmp/a/b; cd /tmp/a; touch c; ls; pwd`, "b\nc\n/tmp/a\n", 0},
		{"remove", `touch /tmp/x; rm /tmp/x; test -f /tmp/x || echo gone`, "gone\n", 0},
		{"nested", `sh -c "echo in"; echo out`, "in\nout\n", 0},
		{"unknown", `frobnicate`, "", 127},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := m.Run(t, c.script); r.Stdout != c.stdout || r.Exit.Code != c.code {
				t.Errorf("%q = %+v, want %q and %d", c.script, r, c.stdout, c.code)
			}
		})
	}
}

func TestTimeoutAndSignal(t *testing.T) {
	h := vmmtest.Bake(t, lab(t, fake.New()))
	m := h.Restore(t)
	p, err := m.Link.Start(t.Context(), guestapi.ProcessSpec{Shell: "echo a; sleep 1000", Timeout: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r, err := vmmtest.Collect(t.Context(), p)
	if err != nil || !r.Exit.TimedOut || r.Stdout != "a\n" {
		t.Errorf("got %+v, %v, want a timeout with output", r, err)
	}
	q, err := m.Link.Start(t.Context(), guestapi.ProcessSpec{Shell: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Link.Signal(t.Context(), guestapi.ProcessRef{PID: q.PID()}, 15, false); err != nil {
		t.Fatal(err)
	}
	if r, err := vmmtest.Collect(t.Context(), q); err != nil || r.Exit.Code != 143 || r.Exit.Signal != 15 {
		t.Errorf("got %+v, %v, want signal 15", r, err)
	}
}

func TestFaults(t *testing.T) {
	d := fake.New()
	h := vmmtest.Bake(t, lab(t, d))
	boom := errors.New("boom")
	d.FailNext(fake.OpPrepare, boom)
	if _, err := d.Prepare(t.Context(), h.Spec(t, ""), h.Image); !errors.Is(err, boom) {
		t.Errorf("got %v, want the injected error", err)
	}
	m := h.Restore(t)
	var seen []string
	d.OnStep(func(op, id string) error {
		seen = append(seen, op+" "+id)
		return nil
	})
	d.FailNext(fake.OpPause, boom)
	if err := m.Pause(t.Context()); !errors.Is(err, boom) {
		t.Errorf("got %v, want the injected error", err)
	}
	if err := m.Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if len(seen) != 2 || seen[0] != "pause "+m.Spec.ID {
		t.Errorf("steps = %v, want two, the first a pause of the machine", seen)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Resume(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("resume with a canceled context: got %v, want canceled", err)
	}
}
