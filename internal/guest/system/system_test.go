package system

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// fake is a System, a Workload and Forks in memory, which can fail at any step.
type fake struct {
	steps  []string
	files  map[string]string
	bootID []string
	failAt string
	frozen bool
	held   bool
	env    map[string]string
	user   string
}

func (f *fake) step(format string, args ...any) error {
	s := fmt.Sprintf(format, args...)
	f.steps = append(f.steps, s)
	if f.failAt != "" && strings.HasPrefix(s, f.failAt) {
		return errors.New("broken")
	}
	return nil
}

func (f *fake) AddEntropy(b []byte) error     { return f.step("entropy %d", len(b)) }
func (f *fake) SetClock(t time.Time) error    { return f.step("clock %d", t.Unix()) }
func (f *fake) SetHostname(name string) error { return f.step("hostname %s", name) }
func (f *fake) SetNetwork(n Network) error {
	return f.step("network %s %s %d", n.Address, n.Gateway, n.MTU)
}
func (f *fake) GrowRoot() error { return f.step("grow") }
func (f *fake) Mount(device, dir string, options []string) error {
	return f.step("mount %s %s %v", device, dir, options)
}
func (f *fake) Sync() { _ = f.step("sync") }

func (f *fake) SetBootID(id string) error {
	f.bootID = append(f.bootID, id)
	return f.step("boot id")
}

func (f *fake) ReadFile(p string) ([]byte, error) {
	s, ok := f.files[p]
	if !ok {
		return nil, errors.New("no such file")
	}
	return []byte(s), nil
}

func (f *fake) WriteFile(p string, content []byte, mode uint32) error {
	f.files[p] = string(content)
	return f.step("write %s %o", p, mode)
}

func (f *fake) Freeze(context.Context) error { f.frozen = true; return f.step("freeze") }
func (f *fake) Thaw(context.Context) error {
	err := f.step("thaw")
	f.frozen = err != nil
	return err
}
func (f *fake) Hold()    { f.held = true }
func (f *fake) Release() { f.held = false }
func (f *fake) SetDefaults(env map[string]string, user string) {
	f.env, f.user = env, user
}

// mounter is the Volumes of a fake.
type mounter struct{ f *fake }

func (m mounter) Mount(v guestapi.VolumeMount) error { return m.f.step("volume %d %s", v.Disk, v.Dir) }

func newFake() (*fake, *Control) {
	f := &fake{files: map[string]string{"/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 old\n10.0.0.1 mine\n"}}
	return f, New(f, f, f, mounter{f})
}

func identity() guestapi.Identity {
	return guestapi.Identity{MachineID: "mch1", Hostname: "panda-1", Generation: 3, Time: time.Unix(1_795_000_000, 0),
		Entropy: slices.Repeat([]byte{1}, 64), User: "user", Env: map[string]string{"A": "b"}, DiskGrow: true,
		Network: &guestapi.Network{
			Address: "192.168.241.2/29",
			Gateway: "192.168.241.1",
			DNS:     []string{"9.9.9.9"},
			MTU:     1400,
		},
		Files:   map[string][]byte{"/run/token": []byte("secret")},
		Mounts:  []guestapi.Mount{{Disk: 1, Dir: "/data/", Options: []string{"noatime"}}, {Disk: 2, Dir: "/more"}},
		Volumes: []guestapi.VolumeMount{{Disk: 3, Dir: "/vol"}}}
}

func TestRestoreDoesEveryStep(t *testing.T) {
	f, c := newFake()
	if err := c.Freeze(t.Context(), true); err != nil || !f.frozen || !f.held {
		t.Fatalf("Freeze: got error %v, state %+v", err, f)
	}
	if err := c.Restore(t.Context(), identity()); err != nil {
		t.Fatal(err)
	}
	want := []string{"freeze", "sync", "entropy 64", "clock 1795000000", "hostname panda-1", "write /etc/hostname 644",
		"write /etc/hosts 644", "write /etc/machine-id 444", "boot id", "network 192.168.241.2/29 192.168.241.1 1400",
		"write /etc/resolv.conf 644", "grow", "mount /dev/vdb /data [noatime]", "mount /dev/vdc /more []",
		"volume 3 /vol",
		"write /run/token 644", "thaw"}
	if !slices.Equal(f.steps, want) {
		t.Errorf("got steps\n%q, want\n%q", f.steps, want)
	}
	if f.frozen || f.held || f.user != "user" || f.env["A"] != "b" {
		t.Errorf("after the restore: got state %+v", f)
	}
	if f.files["/etc/hosts"] != "127.0.0.1 localhost\n10.0.0.1 mine\n127.0.1.1\tpanda-1\n" ||
		f.files["/etc/resolv.conf"] != "nameserver 9.9.9.9\n" {
		t.Errorf("got files %q", f.files)
	}
	if !regexp.MustCompile(`^[0-9a-f]{32}\n$`).MatchString(f.files["/etc/machine-id"]) {
		t.Errorf("got machine ID %q", f.files["/etc/machine-id"])
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).
		MatchString(f.bootID[0]) {
		t.Errorf("got boot ID %q", f.bootID[0])
	}
}

// TestHazards checks every value that two copies of one machine must not share.
func TestHazards(t *testing.T) {
	f, c := newFake()
	first, second := identity(), identity()
	second.MachineID, second.Hostname, second.Entropy[0] = "mch2", "panda-2", 2
	second.Time = second.Time.Add(time.Hour)
	second.Files = map[string][]byte{"/run/token": []byte("another")}
	if err := c.Restore(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	machineID := f.files["/etc/machine-id"]
	f.steps = nil
	if err := c.Restore(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	for hazard, held := range map[string]bool{
		"entropy":    slices.Contains(f.steps, "entropy 64"),
		"clock":      slices.Contains(f.steps, fmt.Sprintf("clock %d", second.Time.Unix())),
		"hostname":   slices.Contains(f.steps, "hostname panda-2") && f.files["/etc/hostname"] == "panda-2\n",
		"machine id": f.files["/etc/machine-id"] != machineID,
		"boot id":    len(f.bootID) == 2 && f.bootID[0] != f.bootID[1],
		"tokens":     f.files["/run/token"] == "another",
	} {
		if !held {
			t.Errorf("%s: shared by two machines (steps %q)", hazard, f.steps)
		}
	}
	f.steps = nil
	if err := c.Restore(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	for _, step := range f.steps {
		if strings.HasPrefix(step, "network") || strings.HasPrefix(step, "write /etc") {
			t.Errorf("a restore as the same machine repeated step %q", step)
		}
	}
	if len(f.bootID) != 2 {
		t.Errorf("a restore as the same machine changed the boot ID: set %d times, want 2", len(f.bootID))
	}
	if err := c.Restore(t.Context(), first); err != nil || len(f.bootID) != 3 {
		t.Errorf("a restore as another machine: got %v, boot ID set %d times, want 3", err, len(f.bootID))
	}
}

// TestRestoreFailsClosed checks that the workload stays frozen, whichever step fails.
func TestRestoreFailsClosed(t *testing.T) {
	for _, step := range []string{"entropy", "clock", "hostname", "write /etc/hostname", "write /etc/hosts",
		"write /etc/machine-id", "boot id", "network", "write /etc/resolv.conf", "grow", "write /run/token", "thaw"} {
		f, c := newFake()
		if err := c.Freeze(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		f.failAt = step
		if err := c.Restore(t.Context(), identity()); err == nil {
			t.Errorf("step %s failed, but Restore returned no error", step)
		}
		if !f.frozen || !f.held {
			t.Errorf("step %s failed, but the workload runs", step)
		}
		f.failAt = ""
		if err := c.Restore(t.Context(), identity()); err != nil || f.frozen || f.held {
			t.Errorf("second Restore after a failure of %s: got error %v, state %+v", step, err, f)
		}
	}
}

func TestRestoreRefusesInvalidIdentities(t *testing.T) {
	for name, spoil := range map[string]func(*guestapi.Identity){
		"host name":  func(i *guestapi.Identity) { i.Hostname = "a b" },
		"long name":  func(i *guestapi.Identity) { i.Hostname = strings.Repeat("x", 64) },
		"address":    func(i *guestapi.Identity) { i.Network.Address = "192.168.241.2" },
		"gateway":    func(i *guestapi.Identity) { i.Network.Gateway = "x" },
		"dns":        func(i *guestapi.Identity) { i.Network.DNS = []string{"9.9.9.9\nsearch evil"} },
		"file name":  func(i *guestapi.Identity) { i.Files = map[string][]byte{"relative": nil} },
		"first dash": func(i *guestapi.Identity) { i.Hostname = "-x" },
	} {
		f, c := newFake()
		id := identity()
		spoil(&id)
		_ = c.Freeze(t.Context(), false)
		if err := c.Restore(t.Context(), id); !errors.Is(err, guestapi.ErrInvalid) || !f.frozen {
			t.Errorf("%s: got error %v, frozen %v", name, err, f.frozen)
		}
	}
}

func TestFreezeThatFailsThaws(t *testing.T) {
	f, c := newFake()
	f.failAt = "freeze"
	if err := c.Freeze(t.Context(), true); err == nil || f.frozen || f.held {
		t.Errorf("got error %v, state %+v", err, f)
	}
}

func TestStatsOfThisMachine(t *testing.T) {
	s, err := Stats("/proc", "/")
	if err != nil || s.MemTotal < 1<<20 || s.MemAvailable <= 0 || s.DiskTotal <= 0 || s.CPUBusy <= 0 || s.Uptime <= 0 ||
		s.Processes <= 0 {
		t.Errorf("Stats: got %+v, %v", s, err)
	}
}

// TestStateIsUnknownAfterAFailure checks that a restore sets again every value that a failed one may have changed.
func TestStateIsUnknownAfterAFailure(t *testing.T) {
	f, c := newFake()
	first, second := identity(), identity()
	second.Hostname, second.MachineID = "panda-2", "another"
	if err := c.Restore(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	f.failAt = "boot id"
	if err := c.Restore(t.Context(), second); err == nil {
		t.Fatal("Restore succeeded, want an error")
	}
	f.failAt, f.steps = "", nil
	if err := c.Restore(t.Context(), first); err != nil || !slices.Contains(f.steps, "hostname panda-1") {
		t.Errorf("second Restore: got error %v, steps %q", err, f.steps)
	}
}
