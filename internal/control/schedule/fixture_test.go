package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // the rules of zones are the same on every machine

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/invocation"
	"github.com/pandastack/pandastack/internal/control/job"
	"github.com/pandastack/pandastack/internal/control/quota"
	"github.com/pandastack/pandastack/internal/control/schedule"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/storetest"
	"github.com/pandastack/pandastack/internal/lib/config"
)

var user = auth.Principal{Workspace: "w1"}

// fixture is a store in the bubble of one test, whose clock begins at midnight UTC of the year 2000, with the sandboxes
// of a workspace.
type fixture struct {
	*testing.T
	dsn   string
	db    *store.DB
	boxes *boxes

	functions *functions // nil: processes have none
	apps      *apps      // nil: processes have none
	schedules int        // quota; 20 if 0
}

// emptyStore returns the address of an empty store. TestPostgres sets another one for its tests.
var emptyStore = func(t *testing.T) string { return filepath.Join(storetest.Dir(t), "control.db") }

// test runs f in a bubble.
func test(t *testing.T, f func(f *fixture)) {
	t.Helper()
	dsn := emptyStore(t)
	synctest.Test(t, func(t *testing.T) {
		x := &fixture{T: t, dsn: dsn, boxes: newBoxes()}
		x.db = x.open(nil)
		f(x)
	})
}

// open opens the store once more, as another process does.
func (f *fixture) open(fault func(op string, committed bool) error) *store.DB {
	f.Helper()
	db, err := store.Open(f.Context(), store.Config{DSN: f.dsn, Fault: fault})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() }) // a test may have closed it
	return db
}

// process is a control plane with schedules that runs until stop is called.
type process struct {
	*schedule.Service
	stop func()
}

// start runs a process over a store.
func (f *fixture) start(db *store.DB) process {
	f.Helper()
	log := slog.New(slog.DiscardHandler)
	jobs, err := job.New(job.Config{}, db, log)
	if err != nil {
		f.Fatal(err)
	}
	limit := config.Quota{Schedules: max(f.schedules, 20)}
	deps := schedule.Deps{
		Store: db, Jobs: jobs, Sandboxes: f.boxes, Templates: f.boxes,
		Quotas: quota.New(quota.Config{Defaults: quota.Defaults(limit)}, db), Log: log,
	}
	loops := []func(context.Context) error{jobs.Run}
	if f.functions != nil {
		invocations, err := invocation.New(invocation.Config{},
			invocation.Deps{Store: db, Jobs: jobs, Invoker: f.functions, Log: log})
		if err != nil {
			f.Fatal(err)
		}
		deps.Functions, loops = invocations, append(loops, invocations.Run)
	}
	if f.apps != nil {
		deps.Apps = f.apps
	}
	s, err := schedule.New(schedule.Config{}, deps)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.Context()))
	var wg sync.WaitGroup
	for _, run := range append(loops, s.Run) {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				f.Errorf("Run: %v", err)
			}
		})
	}
	stop := sync.OnceFunc(func() { cancel(); wg.Wait() })
	f.Cleanup(stop)
	return process{s, stop}
}

// create creates a schedule that runs a command in the user's sandbox.
func (f *fixture) create(s process, cron, command string, o api.ScheduleOptions) api.Schedule {
	f.Helper()
	out, err := s.Create(f.Context(), user, api.CreateScheduleRequest{
		Name: "s" + fmt.Sprint(len(f.list(s))), Cron: cron, Options: o,
		Target: api.ScheduleTarget{SandboxID: f.boxes.mine, Command: command},
	})
	if err != nil {
		f.Fatal(err)
	}
	return out
}

func (f *fixture) list(s process) []api.Schedule {
	f.Helper()
	all, err := s.List(f.Context(), user)
	if err != nil {
		f.Fatal(err)
	}
	return all
}

// runs returns the runs of a schedule, oldest first.
func (f *fixture) runs(s process, id api.ScheduleID) []api.ScheduleRun {
	f.Helper()
	all, err := s.Runs(f.Context(), user, id, 1000)
	if err != nil {
		f.Fatal(err)
	}
	slices.Reverse(all)
	return all
}

// states describes runs: the second of its moment since the clock began, and the state of each.
func states(runs []api.ScheduleRun) string {
	var all []string
	for _, r := range runs {
		at := r.ScheduledFor.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
		all = append(all, fmt.Sprintf("%d %s", int(at.Seconds()), r.Status))
	}
	return strings.Join(all, ", ")
}

func (f *fixture) want(what, got, want string) {
	f.Helper()
	if got != want {
		f.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// after lets time pass and waits until everything has happened.
func after(d time.Duration) {
	<-time.After(d) // by the clock of the bubble
	synctest.Wait()
}

// boxes are the sandboxes of a workspace, and guests in which commands are understood by the fake shell below.
type boxes struct {
	mine api.SandboxID

	mu    sync.Mutex
	live  map[api.SandboxID]auth.Principal
	began []string               // commands, as they began
	done  int                    // commands that ended by themselves
	specs []guestapi.ProcessSpec // of these
	fails map[string]int         // attempts of a command that fail
	wake  error                  // of the next Guest
	next  int
}

func newBoxes() *boxes {
	b := &boxes{mine: api.NewSandboxID(), live: map[api.SandboxID]auth.Principal{}, fails: map[string]int{}}
	b.live[b.mine] = user
	return b
}

func (b *boxes) Create(_ context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := api.NewSandboxID()
	b.live[id] = p
	return api.Sandbox{ID: id, Template: req.Template}, nil
}

func (b *boxes) Get(_ context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if owner, ok := b.live[id]; !ok || owner.Workspace != p.Workspace {
		return api.Sandbox{}, api.Errorf(api.NotFound, "sandbox %s not found", id)
	}
	return api.Sandbox{ID: id, User: "user", Workdir: "/work"}, nil
}

func (b *boxes) Resolve(_ context.Context, _ auth.Principal, name string) (api.Template, error) {
	if name != "base" {
		return api.Template{}, api.Errorf(api.NotFound, "template %s not found", name)
	}
	return api.Template{Name: name}, nil
}

func (b *boxes) Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error) {
	if _, err := b.Get(ctx, p, id); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.wake
	b.wake = nil
	return &guest{boxes: b, ends: map[uint32]func(){}}, err
}

func (b *boxes) Delete(_ context.Context, p auth.Principal, id api.SandboxID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if owner, ok := b.live[id]; ok && owner.Owner != p.Owner {
		return errors.New("deleted by another owner")
	}
	delete(b.live, id)
	return nil
}

// others returns the sandboxes that the user does not have.
func (b *boxes) others() []api.SandboxID {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := slices.Collect(maps.Keys(b.live))
	return slices.DeleteFunc(all, func(id api.SandboxID) bool { return id == b.mine })
}

func (b *boxes) began0() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.began, ", ")
}

// guest runs "take D", which ends after a time, "fail", and other words, which it prints.
type guest struct {
	guestapi.Guest
	boxes *boxes

	mu   sync.Mutex
	ends map[uint32]func()
}

func (g *guest) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	b := g.boxes
	b.mu.Lock()
	defer b.mu.Unlock()
	b.began, b.specs, b.next = append(b.began, spec.Shell), append(b.specs, spec), b.next+1
	p := &program{pid: uint32(b.next), events: make(chan guestapi.Event, 2), killed: make(chan struct{})}
	exit := guestapi.Exit{}
	if b.fails[spec.Shell] > 0 {
		b.fails[spec.Shell]--
		exit.Code = 3
	}
	var takes time.Duration
	if text, ok := strings.CutPrefix(spec.Shell, "take "); ok {
		takes, _ = time.ParseDuration(text) // 0 if it is none
	}
	if spec.Timeout > 0 && takes > spec.Timeout {
		takes, exit = spec.Timeout, guestapi.Exit{TimedOut: true, Code: 137}
	}
	g.mu.Lock()
	g.ends[p.pid] = sync.OnceFunc(func() { close(p.killed) })
	g.mu.Unlock()
	go func() {
		select {
		case <-time.After(takes):
			b.mu.Lock()
			b.done++
			b.mu.Unlock()
		case <-p.killed:
			exit = guestapi.Exit{Code: 137, Signal: 9}
		}
		p.events <- guestapi.Event{Stream: guestapi.StreamStdout, Data: []byte("printed by " + spec.Shell + "\n")}
		p.events <- guestapi.Event{Exit: &exit}
	}()
	return p, nil
}

func (g *guest) Signal(_ context.Context, ref guestapi.ProcessRef, _ int, _ bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if end, ok := g.ends[ref.PID]; ok {
		end()
	}
	return nil
}

type program struct {
	pid    uint32
	events chan guestapi.Event
	killed chan struct{}
}

func (p *program) PID() uint32 { return p.pid }

func (p *program) Next(ctx context.Context) (guestapi.Event, error) {
	select {
	case e := <-p.events:
		return e, nil
	case <-ctx.Done():
		return guestapi.Event{}, ctx.Err()
	}
}

func (p *program) Write([]byte) (int, error)                   { return 0, io.ErrClosedPipe }
func (p *program) CloseInput() error                           { return nil }
func (p *program) Resize(context.Context, guestapi.Size) error { return nil }
func (p *program) Close() error                                { return nil }
