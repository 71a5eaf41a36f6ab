package bake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/bake"
	"github.com/pandastack/pandastack/internal/host/machine"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// fixture is a baker over simulated machines: it implements bake.Machines.
type fixture struct {
	t     *testing.T
	dir   string
	store *snapshot.Store
	baker *bake.Baker
	stop  func()

	mu              sync.Mutex
	recipe          bake.Recipe
	platform        string
	builds          int
	live            map[hostapi.MachineID]bool
	disks           map[hostapi.MachineID][]snapshot.DataDisk // of those that were booted
	commands        []string
	exits           map[string][]int // exit codes of commands, one after the other
	step            func(string) error
	hold            chan struct{} // builds wait until it is closed
	running         []guestapi.ProcessInfo
	exitAtOnce      bool // programs exit as soon as they start
	jitWarmup       bool
	foreignWarmedUp bool // IsWarmedUp of snapshots that another fixture made
	warmups         int
	volumes         int                   // that were attached and detached
	warmedUp        map[snapshot.Ref]bool // IsWarmedUp of snapshots that this fixture made
	exercised       map[hostapi.MachineID]bool
	boots           []machine.Boot
	sizes           map[hostapi.MachineID]machine.Boot
	refuse          error // the error of the next boot from a pre-mount snapshot
	quietPeriod     time.Duration
	rebakeStale     bool
	log             *slog.Logger
}

func newFixture(t *testing.T, change ...func(*fixture)) *fixture {
	t.Helper()
	return openFixture(t, t.TempDir(), change...)
}

// bareFixture returns a fixture without a store or baker.
func bareFixture(t *testing.T, dir string) *fixture {
	return &fixture{
		t:           t,
		dir:         dir,
		platform:    "p1",
		live:        map[hostapi.MachineID]bool{},
		disks:       map[hostapi.MachineID][]snapshot.DataDisk{},
		exits:       map[string][]int{},
		warmedUp:    map[snapshot.Ref]bool{},
		exercised:   map[hostapi.MachineID]bool{},
		sizes:       map[hostapi.MachineID]machine.Boot{},
		quietPeriod: time.Hour,
	}
}

// openFixture returns a fixture over the files of a directory.
func openFixture(t *testing.T, dir string, change ...func(*fixture)) *fixture {
	t.Helper()
	w := bareFixture(t, dir)
	w.recipe = bake.Recipe{
		Name: "base", VCPUs: 1, MemoryMiB: 64, DiskMiB: 1, Disks: data, User: "user", Digest: "0123456789abcdef0123",
		Start: []bake.Start{
			{Name: "a server", Spec: guestapi.ProcessSpec{Shell: "serve", User: "root", Tag: "server"}},
		},
		Ready: "ready?", Check: "check it", Warm: []string{"warm one", "warm two"}, Build: w.build,
	}
	for _, c := range change {
		c(w)
	}
	var err error
	if w.store, err = snapshot.Open(w.dir, nil, "snapshots", bake.Area, bake.PreMountArea); err != nil {
		t.Fatal(err)
	}
	if err := w.store.GC(); err != nil {
		t.Fatal(err)
	}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

// data are the data disks of the template.
var data = []snapshot.DataDisk{{Name: "data", MiB: 1, Mount: "/data"}}

func (w *fixture) start() {
	var err error
	w.baker, err = bake.New(bake.Config{
		Dir: filepath.Join(w.dir, "bake"), Recipes: []bake.Recipe{w.recipe}, Machines: w, Store: w.store,
		Platform:    func(context.Context) (string, error) { return w.platform, nil },
		RebakeStale: w.rebakeStale, Log: w.log,
		JITWarmup: w.jitWarmup, QuietPeriod: w.quietPeriod, IsWarmedUp: func(s snapshot.Snapshot) (bool, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			warm, mine := w.warmedUp[s.Ref]
			return w.foreignWarmedUp && (warm || !mine), nil
		},
		Rewrite: rewrite,
		Clone:   func(src, dst string) error { return rewrite(context.Background(), src, dst) },
		OnStep: func(step string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.step == nil {
				return nil
			}
			return w.step(step)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.baker.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func rewrite(_ context.Context, src, dst string) error {
	data, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	return os.WriteFile(dst, data, 0o600)
}

func (w *fixture) build(ctx context.Context, work, image string, log, step func(string)) error {
	w.mu.Lock()
	w.builds++
	hold := w.hold
	w.mu.Unlock()
	step("rootfs")
	log("unpacking")
	if err := os.Mkdir(work, 0o700); err != nil {
		return err
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	step("image")
	return errors.Join(
		os.WriteFile(image, make([]byte, 1<<20), 0o600),
		os.WriteFile(bake.DataImage(image, "data"), bytes.Repeat([]byte("data"), 1<<18), 0o600),
	)
}

func (w *fixture) Boot(_ context.Context, req machine.Boot) (machine.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := os.Stat(req.Disk); err != nil || w.live[req.ID] {
		return machine.View{}, fmt.Errorf("boot %s: exists=%v, %w", req.ID, w.live[req.ID], err)
	}
	w.boots = append(w.boots, req)
	if err := w.refuse; err != nil && req.From != "" {
		w.refuse = nil
		return machine.View{}, err
	}
	w.disks[req.ID] = nil
	for _, d := range req.Data {
		if _, err := os.Stat(d.Path); err != nil {
			return machine.View{}, err
		}
		w.disks[req.ID] = append(w.disks[req.ID], d.DataDisk)
	}
	w.live[req.ID], w.sizes[req.ID], w.exercised[req.ID] = true, req, false
	return machine.View{ID: req.ID}, nil
}

func (w *fixture) Guest(_ context.Context, id hostapi.MachineID) (guestapi.Guest, error) {
	return &guest{w: w}, nil
}

func (w *fixture) TakeSnapshot(ctx context.Context, id hostapi.MachineID, ref snapshot.Ref,
	change func(*snapshot.Snapshot), finish func(context.Context, *snapshot.Draft) error) (snapshot.Snapshot, error) {
	d, err := w.store.Draft()
	if err != nil {
		return snapshot.Snapshot{}, err
	}
	snap := snapshot.Snapshot{Ref: ref, Machine: string(id), VCPUs: 1, MemoryMiB: 64, Created: time.Now()}
	w.mu.Lock()
	if of, ok := w.sizes[id]; ok {
		snap.VCPUs, snap.MemoryMiB = of.VCPUs, of.MemoryMiB
	}
	w.warmedUp[ref] = w.exercised[id]
	w.mu.Unlock()
	change(&snap)
	memory := filepath.Join(d.ImageDir(), "memory")
	if err := os.WriteFile(memory, []byte("memory"), 0o600); err != nil {
		return snap, err
	}
	if err := os.Truncate(memory, 5<<20); err != nil {
		return snap, err
	}
	snap.Manifest.Files = []vmm.File{{Name: "memory", Bytes: 5 << 20}}
	w.mu.Lock()
	if snap.Data = w.disks[id]; id == "m" { // of a sandbox
		snap.Data = data
	}
	w.mu.Unlock()
	for _, path := range d.DiskPaths(snap.Data) {
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			return snap, err
		}
	}
	if err := finish(ctx, d); err != nil {
		return snap, errors.Join(err, d.Discard())
	}
	if snap, err = d.Commit(snap); err != nil {
		return snap, errors.Join(err, d.Discard())
	}
	return snap, w.store.Release(ref)
}

func (w *fixture) CreateEphemeral(_ context.Context, id hostapi.MachineID, from snapshot.Ref) (machine.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.store.Get(from); err != nil || w.live[id] {
		return machine.View{}, fmt.Errorf("restore %s: exists=%v, %w", id, w.live[id], err)
	}
	w.live[id], w.exercised[id] = true, false
	return machine.View{ID: id}, nil
}

func (w *fixture) Hibernate(context.Context, hostapi.MachineID) error { return nil }

func (w *fixture) Wake(_ context.Context, id hostapi.MachineID) (machine.View, error) {
	return machine.View{ID: id}, nil
}

func (w *fixture) ExerciseVolume(_ context.Context, id hostapi.MachineID, dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.live[id] || !strings.HasPrefix(dir, "/") {
		return fmt.Errorf("attach a volume at %q of machine %s: %w", dir, id, hostapi.ErrInvalid)
	}
	w.volumes++
	return nil
}

func (w *fixture) MarkWarmedUp(_ context.Context, id hostapi.MachineID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.volumes == 0 {
		return errors.New("the guest has not mounted a volume")
	}
	w.warmups++
	w.exercised[id] = true
	return nil
}

func (w *fixture) Destroy(_ context.Context, id hostapi.MachineID, _ string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.live, id)
	return nil
}

// guest ends commands with the exit codes that the test wants, or 0.
type guest struct {
	guestapi.Guest
	w *fixture
}

func (g *guest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.commands = append(g.w.commands, spec.User+": "+spec.Shell+strings.Join(spec.Argv, " "))
	if spec.Tag != "" {
		info := guestapi.ProcessInfo{Tag: spec.Tag}
		if g.w.exitAtOnce {
			info.Exit = &guestapi.Exit{Code: 1}
		}
		g.w.running = append(g.w.running, info)
	}
	code := 0
	if codes := g.w.exits[spec.Shell]; len(codes) > 0 {
		code, g.w.exits[spec.Shell] = codes[0], codes[1:]
	}
	return &process{events: []guestapi.Event{
		{
			Stream: guestapi.StreamStdout,
			Data:   []byte("out of " + spec.Shell + "\nand mo\x1bre"),
		}, {Exit: &guestapi.Exit{Code: code}}}}, nil
}

func (g *guest) Write(context.Context, string, guestapi.WriteOptions, io.Reader) (guestapi.FileInfo, error) {
	return guestapi.FileInfo{}, nil
}

func (g *guest) Stat(context.Context, string, string) (guestapi.FileInfo, error) {
	return guestapi.FileInfo{}, nil
}

func (g *guest) Read(context.Context, string, string, int64, int64) (guestapi.FileInfo, io.ReadCloser, error) {
	return guestapi.FileInfo{}, io.NopCloser(strings.NewReader("text")), nil
}

func (g *guest) List(context.Context, string, string, int) ([]guestapi.FileInfo, error) {
	return nil, nil
}

func (g *guest) Remove(context.Context, string, string, bool) error { return nil }

func (g *guest) Processes(context.Context) ([]guestapi.ProcessInfo, error) {
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	return slices.Clone(g.w.running), nil
}

func (g *guest) Attach(_ context.Context, ref guestapi.ProcessRef, _ guestapi.Offsets) (guestapi.Process, error) {
	return &process{events: []guestapi.Event{
		{Stream: guestapi.StreamStderr, Data: []byte("no port for " + ref.Tag)}, {Exit: &guestapi.Exit{Code: 1}}}}, nil
}

// Signal finds no process: all have exited.
func (g *guest) Signal(context.Context, guestapi.ProcessRef, int, bool) error {
	return guestapi.ErrNotFound
}

type process struct {
	guestapi.Process
	events []guestapi.Event
}

func (p *process) Next(context.Context) (guestapi.Event, error) {
	if len(p.events) == 0 {
		return guestapi.Event{}, io.EOF
	}
	ev := p.events[0]
	p.events = p.events[1:]
	return ev, nil
}

func (p *process) PID() uint32  { return 1 }
func (p *process) Close() error { return nil }

// checkNothingLeft fails unless exactly so many generations exist, and no machine or unfinished file.
func (w *fixture) checkNothingLeft(generations int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.live) != 0 {
		w.t.Errorf("machines %v are left, want none", w.live)
	}
	for pattern, want := range map[string]int{"drafts/*": 0, "bake/*.work": 0, "bake/*.new": 0, "bake/*.new~*": 0,
		"templates/*/*": generations} {
		got, err := filepath.Glob(filepath.Join(w.dir, pattern))
		if err != nil || len(got) != want {
			w.t.Errorf("files %s: got %v, %v, want %d", pattern, got, err, want)
		}
	}
}

func TestBake(t *testing.T) {
	w := newFixture(t)
	w.exits["ready?"] = []int{1, 1, 0}
	snap, cold, err := w.baker.Ensure(t.Context(), "base")
	if err != nil || !cold || !strings.HasPrefix(string(snap.Ref), "templates/base/") {
		t.Fatalf("Ensure() = %+v, cold %v, %v, want a cold bake", snap, cold, err)
	}
	want := []string{
		"root: serve",
		"root: ready?",
		"root: ready?",
		"root: ready?",
		"user: check it",
		"user: warm one",
		"user: warm two",
	}
	if !slices.Equal(w.commands, want) {
		t.Errorf("commands are %q, want %q", w.commands, want)
	}
	list, err := w.baker.Templates(t.Context())
	if err != nil || len(list) != 1 || !list[0].Baked || list[0].Bake.State != "done" || list[0].Bake.Percent != 100 {
		t.Fatalf("Templates() = %+v, %v, want one baked template", list, err)
	}
	if log := strings.Join(list[0].Bake.Log, "\n"); !strings.Contains(log, "unpacking\n") ||
		!strings.Contains(log, "out of warm two\nand more") {
		t.Errorf("log is %q, want the output of the commands", log)
	}
	if want := []hostapi.DataDisk{{Name: "data", SizeMiB: 1, Mount: "/data"}}; !slices.Equal(list[0].Disks, want) ||
		list[0].ApparentBytes != 7<<20 {
		t.Errorf("data disks %v and %d apparent bytes, want one disk and a size", list[0].Disks, list[0].ApparentBytes)
	}
	if again, cold, err := w.baker.Ensure(t.Context(), "base"); err != nil || cold || again.Ref != snap.Ref {
		t.Errorf("second Ensure() = %v, cold %v, %v, want the same snapshot", again.Ref, cold, err)
	}
	w.checkNothingLeft(1)

	// Another kernel makes another generation of the same root image; the old one stays for machines that run on it.
	if _, err := w.store.Acquire(snap.Ref); err != nil {
		t.Fatal(err)
	}
	w.platform = "p2"
	next, cold, err := w.baker.Ensure(t.Context(), "base")
	if err != nil || !cold || next.Ref == snap.Ref || w.builds != 1 {
		t.Fatalf("Ensure() on another platform = %v, cold %v, %v after %d builds, want a cold bake of the same image",
			next.Ref, cold, err, w.builds)
	}
	w.checkNothingLeft(2)
	if err := w.store.Release(snap.Ref); err != nil {
		t.Fatal(err)
	}
	w.checkNothingLeft(1)
}

// withJITWarmup makes the baker warm templates up.
func withJITWarmup(w *fixture) { w.jitWarmup, w.foreignWarmedUp = true, true }

func TestJITWarmup(t *testing.T) {
	w := newFixture(t, withJITWarmup)
	first, _, err := w.baker.Ensure(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.commands); w.warmups != 1 || n < 10 || w.commands[n-1] != "user: /bin/sh -c true" ||
		w.commands[n-2] != "user: warm two" {
		t.Errorf("%d JIT warm-ups with the commands %q", w.warmups, w.commands)
	}
	w.checkNothingLeft(1)

	// After a boot of the host the warm-up is lost. The template stays usable and is warmed up again.
	w.stop()
	w.foreignWarmedUp = false
	w.start()
	deadline := time.Now().Add(time.Minute)
	for {
		now, baked, err := w.baker.Current(t.Context(), "base")
		if err != nil || !baked {
			t.Fatalf("Current() during the JIT warm-up = %v, %v, want a usable template", baked, err)
		}
		if now.Ref != first.Ref {
			if !now.Created.Equal(first.Created) {
				t.Errorf(
					"it was rehearsed alone, and is of %v instead of %v: what was built on it would be built again",
					now.Created,
					first.Created,
				)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the template was not warmed up")
		}
		runtime.Gosched()
	}
	w.waitEnded()
	if w.builds != 1 {
		t.Errorf("%d builds, want no more", w.builds)
	}
	w.checkNothingLeft(1)

	// A failure leaves the template as it was.
	now, _, err := w.baker.Current(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.exits["true"] = []int{7}
	w.start()
	w.waitEnded()
	if after, baked, err := w.baker.Current(t.Context(), "base"); err != nil || !baked || after.Ref != now.Ref {
		t.Errorf("Current() after a failed warm-up = %v, %v, %v, want the same snapshot", after.Ref, baked, err)
	}
	w.checkNothingLeft(1)
}

func TestForceBakesAgain(t *testing.T) {
	w := newFixture(t)
	first, _, err := w.baker.Ensure(t.Context(), "base")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.baker.Start(t.Context(), "base", false); err != nil {
		t.Fatal(err)
	}
	if err := w.baker.Start(t.Context(), "base", true); err != nil {
		t.Fatal(err)
	}
	w.waitEnded()
	second, _, err := w.baker.Ensure(t.Context(), "base")
	if err != nil || second.Ref == first.Ref || w.builds != 2 {
		t.Errorf("forced bake = %v after %v, %d builds, %v, want a new snapshot", second.Ref, first.Ref, w.builds, err)
	}
	w.checkNothingLeft(1)
}

// waitEnded waits until no bake is in progress and returns the last one.
func (w *fixture) waitEnded() *hostapi.Bake {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		list, err := w.baker.Templates(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		if b := list[0].Bake; b != nil && b.State != "running" {
			return b
		}
		if time.Now().After(deadline) {
			w.t.Fatal("the bake does not end")
		}
		<-time.After(time.Millisecond)
	}
}

func TestConcurrentCallersShareOneBake(t *testing.T) {
	w := newFixture(t)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if w.builds != 1 {
		t.Errorf("%d builds, want 1", w.builds)
	}
	w.checkNothingLeft(1)
}

func TestCancel(t *testing.T) {
	w := newFixture(t)
	w.hold = make(chan struct{})
	if err := w.baker.Start(t.Context(), "base", false); err != nil {
		t.Fatal(err)
	}
	w.baker.Cancel("base")
	if b := w.waitEnded(); b.State != "failed" || !strings.Contains(b.Err, "cancelled") {
		t.Errorf("bake is %+v, want it cancelled", b)
	}
	w.checkNothingLeft(0)
}

func TestUnknownTemplate(t *testing.T) {
	w := newFixture(t)
	if _, _, err := w.baker.Ensure(t.Context(), "none"); !errors.Is(err, hostapi.ErrNotFound) {
		t.Errorf("Ensure() = %v, want %v", err, hostapi.ErrNotFound)
	}
}

func TestFailingWarmCommandFailsTheBake(t *testing.T) {
	w := newFixture(t)
	w.exits["warm two"] = []int{3}
	_, _, err := w.baker.Ensure(t.Context(), "base")
	if err == nil || !strings.Contains(err.Error(), `warm "warm two": the command exited with status 3: and more`) {
		t.Errorf("Ensure() = %v, want the failure and its output", err)
	}
	w.checkNothingLeft(0)
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil || w.builds != 1 {
		t.Errorf("second Ensure() = %v after %d builds, want 1: the root image is kept", err, w.builds)
	}
}

func TestFailingCheckFailsTheBake(t *testing.T) {
	w := newFixture(t)
	w.exits["check it"] = []int{7}
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err == nil ||
		!strings.Contains(err.Error(), "check of the template: the command exited with status 7") {
		t.Errorf("Ensure() = %v, want the failure and its output", err)
	}
	w.checkNothingLeft(0)
}

func TestExitedStartCommandFailsTheBake(t *testing.T) {
	w := newFixture(t)
	w.exitAtOnce = true
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err == nil ||
		!strings.Contains(err.Error(), "a server has ended: no port for server") {
		t.Errorf("Ensure() = %v, want the failure and its output", err)
	}
	// It fails at once even if the template waits for its ready command.
	w.exits["ready?"] = slices.Repeat([]int{1}, 1_000_000)
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err == nil ||
		!strings.Contains(err.Error(), "a server has ended: no port for server") {
		t.Errorf("Ensure() = %v while waiting, want the exit of the program", err)
	}
	w.checkNothingLeft(0)
}

// Output that a ready command repeats while the template is not ready is in the log once.
func TestReadyOutputIsLoggedOnce(t *testing.T) {
	w := newFixture(t)
	w.exits["up?"] = []int{1, 1, 1}
	var mu sync.Mutex
	repeats := 0
	_, err := w.baker.Publish(t.Context(), publishRequest, source(t), func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		if line == "out of up?" {
			repeats++
		}
	})
	if err != nil || repeats != 1 {
		t.Errorf("the line is in the log %d times, %v, want once", repeats, err)
	}
}

func TestFailureAfterEveryStep(t *testing.T) {
	injected := errors.New("injected")
	for nth := 0; ; nth++ {
		w := newFixture(t, withJITWarmup)
		count := 0
		w.step = func(string) error {
			if count++; count-1 == nth {
				return injected
			}
			return nil
		}
		_, _, err := w.baker.Ensure(t.Context(), "base")
		w.mu.Lock()
		total := count
		w.step = nil
		w.mu.Unlock()
		if total <= nth {
			if err != nil {
				t.Error(err)
			}
			break
		}
		if !errors.Is(err, injected) {
			t.Fatalf("error after step %d is %v, want the injected one", nth, err)
		}
		_, baked, err := w.baker.Current(t.Context(), "base")
		if err != nil {
			t.Fatal(err)
		}
		if baked {
			w.checkNothingLeft(1)
		} else {
			w.checkNothingLeft(0)
		}
		if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil {
			t.Errorf("Ensure() after a failure in step %d: %v", nth, err)
		}
		w.checkNothingLeft(1)
		w.stop()
	}
}

// A bake is killed after each step: the files stay as they are then, and the machine is lost, since machines of bakes
// are not adopted. A baker over these files leaves nothing of the bake, and can bake.
func TestKillAfterEveryStep(t *testing.T) {
	for nth := 0; ; nth++ {
		w := newFixture(t, withJITWarmup)
		killed, count, where := t.TempDir(), 0, ""
		w.step = func(step string) error {
			if count++; count-1 != nth {
				return nil
			}
			where = step
			return os.CopyFS(killed, os.DirFS(w.dir))
		}
		if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil {
			t.Fatal(err)
		}
		w.stop()
		if where == "" {
			if nth < 3 {
				t.Errorf("a bake has %d steps, want more", nth)
			}
			return
		}
		after := openFixture(t, killed, withJITWarmup)
		_, baked, err := after.baker.Current(t.Context(), "base")
		if err != nil {
			t.Fatal(err)
		}
		if err := after.baker.Start(t.Context(), "base", !baked); err != nil { // Run sweeps before it takes a job
			t.Fatal(err)
		}
		if !baked {
			after.waitEnded()
		}
		if _, _, err := after.baker.Ensure(t.Context(), "base"); err != nil {
			t.Errorf("Ensure() after a kill in %s: %v", where, err)
		}
		after.checkNothingLeft(1)
		after.stop()
		if t.Failed() {
			t.Fatalf("leftovers of a kill in %s", where)
		}
	}
}

func TestSweepRemovesLeftovers(t *testing.T) {
	w := newFixture(t)
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	w.stop()
	for _, name := range []string{"base-1.work", "base-1.ext4.new", "base-1.ext4.new~data",
		"base-1.ext4.new~data.raw"} {
		if err := os.MkdirAll(filepath.Join(w.dir, "bake", name, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.start()
	if _, _, err := w.baker.Ensure(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	if err := w.baker.Start(t.Context(), "base", true); err != nil { // Run sweeps before it takes a job
		t.Fatal(err)
	}
	w.waitEnded()
	w.checkNothingLeft(1)
}
