package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/integrationtest"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/fake"
)

// fixture is a host agent over fake machines; the machines outlive it.
type fixture struct {
	t            *testing.T
	dir          string
	driver       *fake.Driver
	leaveRunning bool
	shared       *agent.Objects // nil: none
	incompatible error          // of images that come from elsewhere
	diskFull     atomic.Bool    // the disk is
	host         *agent.Host
	stop         func()
}

// compatDriver is a driver whose compatibility check returns what its fixture sets.
type compatDriver struct {
	*fake.Driver
	w *fixture
}

func (f compatDriver) CheckCompatible(context.Context, vmm.Manifest) error { return f.w.incompatible }

func (w *fixture) freeSpace(string) (total, free int64, err error) {
	if w.diskFull.Load() {
		return 1 << 40, 1 << 20, nil
	}
	return 1 << 40, 1 << 40, nil
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{t: t, dir: t.TempDir(), driver: fake.New()}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *fixture) start() {
	w.t.Helper()
	recipe := bake.Recipe{
		Name: "base", Aliases: []string{"other"}, VCPUs: 1, MemoryMiB: 64, DiskMiB: 1, Digest: "d1",
		Ready: "true", Warm: []string{"echo warm"},
		Disks: []snapshot.DataDisk{{Name: "data", MiB: 1, Mount: "/data"}},
		Build: func(_ context.Context, _, image string, _, _ func(string)) error {
			return errors.Join(
				os.WriteFile(image, make([]byte, 1<<20), 0o600),
				os.WriteFile(bake.DataImage(image, "data"), make([]byte, 1<<20), 0o600),
			)
		},
	}
	host, err := agent.New(agent.Config{
		DataDir: w.dir, Recipes: []bake.Recipe{recipe}, LeaveRunning: w.leaveRunning,
		Machine: machine.Config{
			ReadyTimeout: time.Minute, BootTimeout: time.Minute, Places: 4,
			HostMemory: func() (int64, int64, error) { return 1 << 36, 1 << 36, nil },
			FreeSpace:  w.freeSpace,
			Kernel:     func(context.Context) (machine.Kernel, error) { return machine.Kernel{}, nil },
		},
	}, agent.Deps{
		Machine: machine.Deps{
			Driver:  compatDriver{w.driver, w},
			Network: integrationtest.Network{},
			Cgroups: integrationtest.Cgroups{},
			Disks:   integrationtest.Disks{},
			Link:    integrationtest.Link,
		},
		Platform:   func(context.Context) (string, error) { return "test", nil },
		Rewrite:    func(_ context.Context, src, dst string) error { return integrationtest.Disks{}.Clone(src, dst) },
		ImportRoot: func(context.Context, io.Reader, *os.File, int) (int, error) { return 1, nil },
		Objects:    w.shared,
	})
	w.must(err)
	w.must(host.Open(w.t.Context()))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- host.Run(ctx) }()
	w.host = host
	w.stop = sync.OnceFunc(func() {
		cancel()
		w.must(<-done)
		w.must(host.Close(context.Background()))
	})
}

// restart ends the host agent cleanly and starts another.
func (w *fixture) restart() {
	w.t.Helper()
	w.stop()
	w.start()
}

func (w *fixture) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) create(req hostapi.Create) hostapi.Machine {
	w.t.Helper()
	mc, err := w.host.Create(w.t.Context(), req)
	w.must(err)
	return mc
}

// run runs a command in a guest and returns its output.
func (w *fixture) run(id hostapi.MachineID, shell string) string {
	w.t.Helper()
	guest, err := guestdial.New(w.host).Guest(w.t.Context(), id)
	w.must(err)
	p, err := guest.Start(w.t.Context(), guestapi.ProcessSpec{Shell: shell})
	w.must(err)
	defer p.Close()
	var out bytes.Buffer
	for {
		ev, err := p.Next(w.t.Context())
		w.must(err)
		if ev.Exit != nil {
			return strings.TrimSpace(out.String())
		}
		out.Write(ev.Data)
	}
}

func (w *fixture) states() map[hostapi.MachineID]hostapi.State {
	w.t.Helper()
	list, err := w.host.List(w.t.Context())
	w.must(err)
	out := map[hostapi.MachineID]hostapi.State{}
	for _, mc := range list {
		out[mc.ID] = mc.State
	}
	return out
}

func TestCreateBakesOnce(t *testing.T) {
	w := newFixture(t)
	if mc := w.create(hostapi.Create{ID: "a", Template: "base"}); mc.BootMode != hostapi.BootCold {
		t.Errorf("first machine came by %q, want cold", mc.BootMode)
	}
	mc := w.create(hostapi.Create{ID: "b", Template: "other", Env: map[string]string{"WORD": "hello"}})
	if mc.BootMode != hostapi.BootSnapshot || mc.MemoryMiB != 64 || mc.DiskMiB != 1 {
		t.Errorf("second machine %+v", mc)
	}
	if got := w.run("b", "echo $WORD $(hostname)"); got != "hello b" && got != "hello $(hostname)" {
		t.Errorf("guest says %q", got)
	}
	list, err := w.host.Templates(t.Context())
	if err != nil || len(list) != 1 || !list[0].Baked || list[0].Bytes == 0 {
		t.Errorf("templates %+v, %v", list, err)
	}
	if c, err := w.host.Capacity(t.Context()); err != nil || c.Machines != 2 || c.Running != 2 ||
		c.MemoryMiB != 1<<16 ||
		c.Driver == "" {
		t.Errorf("capacity %+v, %v", c, err)
	}
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	w := newFixture(t)
	create := func(req hostapi.Create) error { _, err := w.host.Create(t.Context(), req); return err }
	_, name := w.host.TakeSnapshot(t.Context(), "a", "Not-A-Name", nil)
	_, none := w.host.TakeSnapshot(t.Context(), "a", "s", nil)
	for what, tc := range map[string]struct{ got, want error }{
		"from-nothing":     {create(hostapi.Create{ID: "a"}), hostapi.ErrInvalid},
		"from-both":        {create(hostapi.Create{ID: "a", Template: "base", Snapshot: "s"}), hostapi.ErrInvalid},
		"unknown-template": {create(hostapi.Create{ID: "a", Template: "none"}), hostapi.ErrNotFound},
		"unknown-snapshot": {create(hostapi.Create{ID: "a", Snapshot: "none"}), hostapi.ErrNotFound},
		"bad-snapshot":     {create(hostapi.Create{ID: "a", Snapshot: "../s"}), hostapi.ErrInvalid},
		"snapshot-name":    {name, hostapi.ErrInvalid},
		"snapshot-of-none": {none, hostapi.ErrNotFound},
		"delete-none":      {w.host.DeleteSnapshot(t.Context(), "none"), hostapi.ErrNotFound},
		"bake-none":        {w.host.StartBake(t.Context(), "none", false), hostapi.ErrNotFound},
	} {
		if !errors.Is(tc.got, tc.want) {
			t.Errorf("%s: %v, want %v", what, tc.got, tc.want)
		}
	}
	if left := w.driver.Monitors(); len(left) != 0 {
		t.Errorf("monitors are left: %v", left)
	}
}

func TestSnapshots(t *testing.T) {
	w := newFixture(t)
	w.create(hostapi.Create{ID: "a", Template: "base"})
	w.run("a", "echo kept > /tmp/file")
	snap, err := w.host.TakeSnapshot(t.Context(), "a", "s", map[string]string{"name": "one"})
	w.must(err)
	if snap.ID != "s" || snap.Machine != "a" || snap.Template != "base" || snap.Labels["name"] != "one" ||
		snap.Bytes == 0 {
		t.Errorf("snapshot %+v", snap)
	}
	w.must(w.host.Hibernate(t.Context(), "a")) // its image is no snapshot of a user
	list, err := w.host.Snapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != "s" {
		t.Errorf("snapshots %+v, %v", list, err)
	}
	w.create(hostapi.Create{ID: "b", Snapshot: "s"})
	w.must(w.host.DeleteSnapshot(t.Context(), "s"))
	if got := w.run("b", "cat /tmp/file"); got != "kept" {
		t.Errorf("guest reads %q", got)
	}
	forked, err := w.host.Fork(t.Context(), hostapi.Fork{Parent: "b", Children: []hostapi.Child{{ID: "c"}}})
	w.must(err)
	if err := forked[0].Err(); err != nil {
		t.Fatal(err)
	}
	if got := w.run("c", "cat /tmp/file"); got != "kept" {
		t.Errorf("child reads %q", got)
	}
}

func TestCleanStopHibernatesPersistentMachines(t *testing.T) {
	w := newFixture(t)
	w.create(hostapi.Create{ID: "kept", Template: "base", Persistent: true})
	w.create(hostapi.Create{ID: "paused", Template: "base", Persistent: true})
	w.create(hostapi.Create{ID: "other", Template: "base"})
	w.run("kept", "echo kept > /tmp/file")
	w.must(w.host.Pause(t.Context(), "paused"))
	w.restart()
	want := map[hostapi.MachineID]hostapi.State{"kept": hostapi.Hibernated, "paused": hostapi.Hibernated}
	if got := w.states(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("machines %v, want %v", got, want)
	}
	if left := w.driver.Monitors(); len(left) != 0 {
		t.Errorf("monitors are left: %v", left)
	}
	_, err := w.host.Wake(t.Context(), "kept")
	w.must(err)
	if got := w.run("kept", "cat /tmp/file"); got != "kept" {
		t.Errorf("woken guest reads %q", got)
	}
}

func TestStopThatLeavesMachinesRunning(t *testing.T) {
	w := newFixture(t)
	w.host.SetLeaveRunning(true)
	for i := range 10 {
		w.create(hostapi.Create{ID: hostapi.MachineID(fmt.Sprintf("m%d", i)), Template: "base"})
	}
	w.run("m3", "echo mine > /tmp/file")
	w.restart()
	if got := w.states(); len(got) != 10 || len(w.driver.Monitors()) != 10 {
		t.Fatalf("machines %v, monitors %v", got, w.driver.Monitors())
	}
	for i := range 10 {
		if got := w.run(hostapi.MachineID(fmt.Sprintf("m%d", i)), "echo here"); got != "here" {
			t.Errorf("machine %d says %q", i, got)
		}
	}
	if got := w.run("m3", "cat /tmp/file"); got != "mine" {
		t.Errorf("adopted guest reads %q", got)
	}
}

func TestEvents(t *testing.T) {
	w := newFixture(t)
	w.create(hostapi.Create{ID: "a", Template: "base", Persistent: true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan hostapi.Event, 10)
	ended := make(chan error, 1)
	enough := errors.New("enough")
	go func() {
		events, err := w.host.Events(ctx)
		if err != nil {
			ended <- err
			return
		}
		e, err := events.Recv(ctx)
		got <- e
		ended <- errors.Join(err, events.Close(), enough)
	}()
	for err := error(nil); err == nil; { // until the follower is there, machines die unheard
		select {
		case err = <-ended:
			if !errors.Is(err, enough) {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Millisecond):
			if w.driver.Crash("a", errors.New("signal 11")) {
				continue
			}
			if w.states()["a"] == hostapi.Failed {
				_, werr := w.host.Wake(ctx, "a")
				w.must(werr)
			}
		}
	}
	if e := <-got; e.Machine != "a" || e.Type != "died" || !strings.Contains(e.Reason, "signal 11") {
		t.Errorf("event %+v", e)
	}
}
