//go:build vm || slow

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/guestlink"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/guestdial"
	"github.com/pandastack/pandastack/internal/host/agent"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/os/egress"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/netslot"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
)

// prefix returns the prefix of the names of everything that the host agent of a directory makes in the kernel, so
// that several runs of these tests on one computer do not collide.
func prefix(dir string) string {
	return fmt.Sprintf("m%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff)
}

// template is baked once and used by all tests.
const template = hostapi.TemplateName("mini")

// large is template with 512 MiB of memory, baked when a test needs it.
const large = hostapi.TemplateName("wide")

// withDataDisk is template with a data disk at /data, baked when a test needs it.
const withDataDisk = hostapi.TemplateName("paired")

// objects is the object store of the host agents that are opened; nil: the one that all tests share.
var objects *agent.Objects

// alterNetwork changes the network settings of the host agents that are opened; nil: it does not.
var alterNetwork func(*netslot.Config)

// alterMachine changes the machine settings of the host agents that are opened; nil: it does not.
var alterMachine func(*machine.Config)

// timeout bounds every single wait; it is far above any expected time.
const timeout = 2 * time.Minute

// freezeTimeout is machine.Config.FreezeTimeout of the host agents that are opened.
var freezeTimeout time.Duration

// onStep is machine.Config.OnStep of the host agents that are opened.
var onStep func(op, step string) error

// agentEnv makes the test binary a host agent over the directory that it names, until it is killed.
const agentEnv = "PANDASTACK_TEST_AGENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentEnv); dir != "" {
		if err := hostAgent(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := shared.remove(); err != nil {
		fmt.Fprintln(os.Stderr, "clean up:", err)
		code = 1
	}
	os.Exit(code)
}

// cycleEnv makes the host agent of the test binary hibernate and wake the machine that it names, until it is killed.
// The agent prints a line after every step.
const cycleEnv = "PANDASTACK_TEST_CYCLE"

// cycle hibernates and wakes a machine until one of the two fails.
func cycle(l *lab, id hostapi.MachineID) error {
	for {
		if err := l.Hibernate(context.Background(), id); err != nil {
			return err
		}
		if _, err := l.Wake(context.Background(), id); err != nil {
			return err
		}
	}
}

// hostAgent runs in the re-executed test binary.
func hostAgent(dir string) error {
	onStep = func(op, step string) error {
		_, err := fmt.Println(op, step)
		return err
	}
	l, err := open(context.Background(), dir, os.Stderr)
	if err != nil {
		return err
	}
	fmt.Println("open")
	if id := os.Getenv(cycleEnv); id != "" {
		return cycle(l, hostapi.MachineID(id))
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return l.close(true)
}

// lab is a host agent on this computer.
type lab struct {
	*agent.Host
	dir  string
	stop func() error
	end  func(leave bool) error
	// refused are the system calls that a monitor made in its jail and that are not allowed.
	refused *refusedCalls
}

// Guest returns the guest of a running machine.
func (l *lab) Guest(ctx context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	return guestdial.New(l.Host).Guest(ctx, id)
}

// data returns the prepared data directory.
func data(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("PANDASTACK_TEST_DATA")
	if dir == "" {
		t.Skip("probe data: PANDASTACK_TEST_DATA names no data directory made by pandastack setup")
	}
	if os.Geteuid() != 0 {
		t.Skip("probe root: machines are made by root alone")
	}
	return dir
}

// shared is the host agent that most tests use, opened when it is first needed.
var shared struct {
	sync.Mutex
	dir  string
	lock *os.File // locked as long as this program uses dir
	lab  *lab
	sharing
}

type sharing struct{}

func (sharing) remove() error {
	shared.Lock()
	defer shared.Unlock()
	var err error
	if shared.lab != nil {
		err = shared.lab.close(false)
	}
	if shared.dir != "" {
		err = errors.Join(err, os.RemoveAll(shared.dir))
	}
	return err
}

// host returns the shared host agent with a baked template.
func host(t *testing.T) *lab {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.lab == nil {
		dir := directory(t)
		l, err := open(t.Context(), dir, &logger{t})
		if err != nil {
			t.Fatal(err)
		}
		shared.lab = l
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := shared.lab.Bake(ctx, template); err != nil {
		t.Fatal(err)
	}
	return shared.lab
}

// closeShared ends the shared host agent, as a clean stop that leaves machines alone, and returns its directory.
func closeShared(t *testing.T) string {
	t.Helper()
	host(t)
	shared.Lock()
	defer shared.Unlock()
	if err := shared.lab.close(true); err != nil {
		t.Fatal(err)
	}
	shared.lab = nil
	return shared.dir
}

// directory makes the directory of the tests below the data directory. The caller holds shared.
func directory(t *testing.T) string {
	t.Helper()
	if shared.dir != "" {
		return shared.dir
	}
	data := data(t)
	if err := disk.Probe(data); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(data, "test-machine")
	lock, err := os.Create(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatalf("lock %s: %v; another run of these tests uses it", dir, errors.Join(err, lock.Close()))
	}
	shared.lock = lock
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "kernel"), 0o711); err != nil {
		t.Fatal(err)
	}
	shared.dir = dir
	guest := filepath.Join(dir, "pandastack-guest")
	build := exec.Command(
		"go",
		"build",
		"-trimpath",
		"-buildvcs=false",
		"-ldflags",
		"-s -w",
		"-o",
		guest,
		"github.com/pandastack/pandastack/cmd/pandastack-guest",
	)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest agent: %v\n%s", err, out)
	}
	return dir
}

// logger writes a log to a test while the test runs.
type logger struct{ t *testing.T }

func (l *logger) Write(p []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

// open starts a host agent over dir, which is in the prepared data directory.
func open(ctx context.Context, dir string, log io.Writer) (_ *lab, err error) {
	var undone []func() error
	defer func() {
		for i := len(undone) - 1; err != nil && i >= 0; i-- {
			err = errors.Join(err, undone[i]())
		}
	}()
	ctx = context.WithoutCancel(ctx)
	driver, err := qemu.New(ctx, qemu.Config{})
	if err != nil {
		return nil, err
	}
	places := netslot.Config{Prefix: prefix(dir), Slots: 64, Ready: 4}
	if alterNetwork != nil {
		alterNetwork(&places)
	}
	pool, err := netslot.New(places)
	if err != nil {
		return nil, err
	}
	if err := pool.Open(ctx); err != nil {
		return nil, err
	}
	undone = append(undone, func() error { return pool.Close(ctx) })
	layout, err := jail.Probe()
	if err != nil {
		return nil, err
	}
	refused := &refusedCalls{}
	cells, err := jail.New(jail.Config{
		Hierarchy: layout, Prefix: prefix(dir), ProgramsDir: filepath.Join(dir, "jail"),
		OnRefusedCall: refused.add,
	})
	if err != nil {
		return nil, err
	}
	undone = append(undone, cells.Close)
	boot, err := kernel.Find(ctx, filepath.Join(filepath.Dir(dir), "kernel"), filepath.Join(dir, "pandastack-guest"))
	if err != nil {
		return nil, err
	}
	recipes, err := recipes(filepath.Dir(dir))
	if err != nil {
		return nil, err
	}
	cfg := agent.Config{DataDir: dir, Recipes: recipes, Machine: machine.Config{
		OnStep:        onStep,
		FreezeTimeout: freezeTimeout,
		Places:        4,
		Allocated:     disk.Allocated,
		Kernel: func(context.Context) (machine.Kernel, error) {
			return machine.Kernel{Kernel: boot.Kernel, Initramfs: boot.Initramfs, Cmdline: boot.Cmdline}, nil
		},
		Owner: func(slot int) (int, int) {
			uid, gid, err := cells.User(slot)
			if err != nil {
				panic(err)
			}
			return uid, gid
		},
	}}
	if alterMachine != nil {
		alterMachine(&cfg.Machine)
	}
	shared := objects
	if shared == nil {
		made, closeObjects, err := openObjects(dir)
		if err != nil {
			return nil, err
		}
		undone = append(undone, closeObjects)
		shared = made
	}
	h, err := agent.New(cfg, agent.Deps{
		Machine: machine.Deps{
			Driver:  driver,
			Network: network{pool},
			Cgroups: groups{cells},
			Disks:   disks{},
			Link:    openLink,
		},
		Platform: func(context.Context) (string, error) {
			return fmt.Sprint(driver.Capabilities(), boot.Digest), nil
		},
		Rewrite: disk.Rewrite, Measure: disk.Usage, Objects: shared,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		return nil, err
	}
	if err := h.Open(ctx); err != nil {
		return nil, err
	}
	l := &lab{Host: h, dir: dir, refused: refused}
	run, cancel := context.WithCancel(ctx)
	errs := make(chan error, 2)
	go func() { errs <- pool.Run(run) }()
	go func() { errs <- h.Run(run) }()
	l.stop = func() error {
		cancel()
		return errors.Join(<-errs, <-errs)
	}
	l.end = func(leave bool) error {
		end, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		h.SetLeaveRunning(leave)
		err := errors.Join(h.Close(end), driver.Close())
		for i := len(undone) - 1; i >= 0; i-- {
			err = errors.Join(err, undone[i]())
		}
		return err
	}
	return l, nil
}

// close ends the host agent; with leave its machines continue to run.
func (l *lab) close(leave bool) error { return errors.Join(l.stop(), l.end(leave), l.refused.err()) }

// refusedCalls counts the system calls that monitors made and that are not allowed.
type refusedCalls struct {
	mu    sync.Mutex
	calls map[string]int
}

func (r *refusedCalls) add(c jail.RefusedCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[string]int{}
	}
	r.calls[fmt.Sprintf("%s(%#x)", c.Name, c.Args[:2])]++
}

func (r *refusedCalls) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) == 0 {
		return nil
	}
	return fmt.Errorf("monitors made system calls that are not allowed: %v", r.calls)
}

// recipes returns the templates of the tests. Their root images are built once for a data directory.
func recipes(data string) ([]bake.Recipe, error) {
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		return nil, err
	}
	r := all[string(template)]
	one := bake.Recipe{
		Name: template, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskMiB: r.DiskMiB, User: r.User, Workdir: r.Workdir,
		Ready: r.Ready, Warm: r.Warm, Digest: r.Digest(),
		Build: func(ctx context.Context, work, image string, log, step func(string)) error {
			kept := filepath.Join(data, fmt.Sprintf("test-%s-%.16s.ext4", template, r.Digest()))
			if _, err := os.Stat(kept); err != nil {
				err := imagebuild.Build(
					ctx,
					imagebuild.Options{Recipe: r, Work: work, Cache: filepath.Join(data, "cache"),
						Image: image, Log: command.Log(log), Step: step},
				)
				if err != nil {
					return err
				}
				return disk.Clone(image, kept)
			}
			return disk.Clone(kept, image)
		},
	}
	two := one
	two.Name, two.MemoryMiB = large, 512
	third := one
	third.Name, third.Disks = withDataDisk, []snapshot.DataDisk{
		{Name: "data", MiB: 64, Mount: "/data", Options: []string{"noatime"}},
	}
	third.Build = func(ctx context.Context, work, image string, log, step func(string)) error {
		if err := os.MkdirAll(filepath.Join(work, "data"), 0o755); err != nil {
			return err
		}
		disk := bake.DataImage(image, "data")
		err := imagebuild.Ext4(ctx, filepath.Join(work, "data"), disk, 64, "data", command.Log(log))
		if err != nil {
			return err
		}
		return one.Build(ctx, work, image, log, step)
	}
	return []bake.Recipe{one, two, third}, nil
}

type network struct{ pool *netslot.Pool }

func (n network) Acquire(ctx context.Context, owner string) (machine.Slot, error) {
	s, err := n.pool.Acquire(ctx, owner)
	return slot{n.pool, s}, err
}

func (n network) Adopt(ctx context.Context, owner string, index int) (machine.Slot, error) {
	s, err := n.pool.Adopt(ctx, owner, index)
	return slot{n.pool, s}, err
}

func (n network) CheckEgress(policy hostapi.Egress) error {
	_, err := egress.Compile(egress.Policy(policy))
	return err
}

func (n network) Sweep(ctx context.Context) error {
	_, err := n.pool.Sweep(ctx)
	return err
}

type slot struct {
	pool *netslot.Pool
	s    *netslot.Slot
}

func (s slot) Info() machine.SlotInfo {
	return machine.SlotInfo{Index: s.s.Index, GuestIP: s.s.GuestIP, TapName: s.s.TapName, Tap: s.s.Tap, MAC: s.s.MAC,
		Guest: guestapi.Network{
			Address: s.s.Address.String(),
			Gateway: s.s.Gateway.String(),
			DNS:     []string{s.s.DNS.String()},
			MTU:     s.s.MTU,
		}}
}

func (s slot) SetEgress(ctx context.Context, policy hostapi.Egress) error {
	return s.s.SetPolicy(ctx, egress.Policy(policy))
}
func (s slot) SetRates(_ context.Context, in, out int64) error { return s.s.SetRates(in, out) }

func (s slot) SetConnections(_ context.Context, open, perSecond int) error {
	return s.s.SetConnections(open, perSecond)
}
func (s slot) Release(ctx context.Context) error { return s.pool.Release(ctx, s.s) }

type groups struct{ cells *jail.Manager }

func limits(l machine.Limits) jail.Limits {
	return jail.Limits{CPUWeight: 100 * l.VCPUs, MemoryMax: l.MemoryBytes, PIDs: 256}
}

func (g groups) Create(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	made, err := g.cells.Create(ctx, name, limits(l))
	return group{made}, err
}

func (g groups) Adopt(ctx context.Context, name string, l machine.Limits) (machine.Cgroup, error) {
	found, err := g.cells.Adopt(ctx, name, limits(l))
	return group{found}, err
}

func (g groups) Sweep(ctx context.Context) error {
	_, err := g.cells.Sweep(ctx)
	return err
}

type group struct{ *jail.Cgroup }

func (g group) Jail() vmm.Jail { return g.Cgroup }

func (g group) OutOfMemory() bool {
	s, err := g.Stats()
	return err == nil && s.OOMKills > 0
}

type disks struct{}

func (disks) Clone(src, dst string) error              { return disk.Clone(src, dst) }
func (disks) CloneInto(src string, dst *os.File) error { return disk.CloneInto(src, dst) }
func (disks) Allocate(path string, bytes int64) error  { return disk.Allocate(path, bytes) }
func (disks) Grow(path string, bytes int64) error      { return disk.Grow(path, bytes) }
func (disks) Sync(path string) error                   { return durable.Sync(path) }

func openLink(ctx context.Context, conn net.Conn, g machine.Handshake) (machine.Link, error) {
	l, err := guestlink.Open(
		ctx,
		conn,
		guestlink.Options{Generation: g.Generation, Identity: g.Identity, Resync: g.Resync},
	)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// run runs a shell command in a machine's guest as root and returns its output.
func (l *lab) run(t *testing.T, id hostapi.MachineID, shell string) string {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), timeout, fmt.Errorf("%q in %s takes too long", shell, id))
	defer cancel()
	guest, err := l.Guest(ctx, id)
	if err != nil {
		t.Fatalf("guest of %s: %v", id, err)
	}
	p, err := guest.Start(ctx, guestapi.ProcessSpec{Shell: shell, User: "root"})
	if err != nil {
		t.Fatalf("%q in %s: %v", shell, id, err)
	}
	defer p.Close()
	var out bytes.Buffer
	for {
		ev, err := p.Next(ctx)
		if errors.Is(err, io.EOF) {
			t.Fatalf("%q in %s: output ended without an exit", shell, id)
		}
		if err != nil {
			t.Fatalf("%q in %s: %v", shell, id, err)
		}
		if ev.Exit != nil {
			if ev.Exit.Code != 0 || ev.Exit.Error != "" {
				t.Fatalf("%q in %s: %+v\n%s", shell, id, ev.Exit, out.Bytes())
			}
			return strings.TrimSpace(out.String())
		}
		out.Write(ev.Data)
	}
}

func (l *lab) create(t *testing.T, req hostapi.Create) hostapi.Machine {
	t.Helper()
	if req.Template == "" && req.Snapshot == "" {
		req.Template = template
	}
	mc, err := l.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %s in %v: %v", mc.ID, mc.BootMode, mc.Boot, mc.Phases)
	t.Cleanup(func() { destroy(t, mc.ID) })
	return mc
}

// destroy ends a machine of the host agent that is open now.
func destroy(t *testing.T, id hostapi.MachineID) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	shared.Lock()
	l := shared.lab
	shared.Unlock()
	if l == nil {
		return
	}
	if err := l.Destroy(ctx, id, "test"); err != nil {
		t.Error(err)
	}
}

// wait waits until a condition holds.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("timeout waiting until %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}
