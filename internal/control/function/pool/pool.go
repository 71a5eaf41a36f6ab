// Package pool has the machines that functions run in.
//
// An isolated invocation takes a machine with Fresh, which is restored for it, and gives it back with Discard, which
// removes it. Shared invocations take leases of machines that are kept: Shared starts them, wakes them, and spreads
// invocations over them; Run hibernates those that are idle and removes those that nothing needs.
//
// Every kept machine has a row. Machines of a process that has ended are found by it, or by their metadata, and are
// removed by the next one (Sweep).
package pool

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/function/program"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Config configures a Pool. Instance is required; zero durations mean the default.
type Config struct {
	Instance     string        // this process
	OwnerKind    string        // of the machines
	StartTimeout time.Duration // until a restored or woken machine takes invocations; 1 min
	Interval     time.Duration // between looks at kept machines; 1 s
	Stale        time.Duration // after which a process on a shared store that did not report has ended; 2 min
}

// Sandboxes are the methods of *sandbox.Service that a Pool needs.
type Sandboxes interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateRequest) (api.Sandbox, error)
	Guest(ctx context.Context, p auth.Principal, id api.SandboxID) (guestapi.Guest, error)
	Hibernate(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Wake(ctx context.Context, p auth.Principal, id api.SandboxID) (api.Sandbox, error)
	Delete(ctx context.Context, p auth.Principal, id api.SandboxID) error
	List(ctx context.Context, p auth.Principal, f api.SandboxFilter) (sandbox.Page, error)
}

// Keys and roles in the metadata of machines.
const (
	RoleKey      = "role"
	InstanceKey  = "instance"
	machineKey   = "machine"
	roleIsolated = "isolated"
	roleShared   = "shared"
)

// Spec says what a machine is restored from, and for what.
type Spec struct {
	Function  api.FunctionID
	Workspace api.Workspace
	Version   int64
	Revision  int64 // of the variables
	Snapshot  api.SnapshotID
	Env       map[string]string
	Network   *api.Network
	Lifetime  time.Duration // of an isolated machine, if this process ends before it is removed

	Concurrency int           // invocations at once in a shared machine
	Machines    int           // shared machines of the version
	Idle        time.Duration // until a shared machine is hibernated
}

// Principal returns who uses what belongs to a function.
func Principal(kind string, workspace api.Workspace, fn api.FunctionID) auth.Principal {
	return auth.Principal{Workspace: workspace, Owner: hostapi.Owner{Kind: kind, ID: string(fn)}}
}

func (s *Spec) principal(kind string) auth.Principal { return Principal(kind, s.Workspace, s.Function) }

// Machine is a machine that takes invocations.
type Machine struct {
	Sandbox api.SandboxID
	Program *program.Program
	owner   auth.Principal
}

// Pool has machines. Make it with New.
type Pool struct {
	cfg   Config
	db    *store.DB
	boxes Sandboxes
	log   *slog.Logger

	mu     sync.Mutex
	kept   map[api.FunctionID][]*kept
	live   map[api.SandboxID]bool // isolated machines of this process
	closed bool                   // Run has ended
	tasks  sync.WaitGroup         // added to under mu while not closed
	stop   chan struct{}          // closed when Run ends
}

// New returns a pool.
func New(cfg Config, db *store.DB, boxes Sandboxes, log *slog.Logger) (*Pool, error) {
	if cfg.Instance == "" || cfg.OwnerKind == "" || db == nil || boxes == nil || log == nil {
		return nil, errors.New("pool: instance, kind of owner, store, sandboxes and log are required")
	}
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, time.Minute)
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	cfg.Stale = cmp.Or(cfg.Stale, 2*time.Minute)
	return &Pool{cfg: cfg, db: db, boxes: boxes, log: log, kept: map[api.FunctionID][]*kept{},
		live: map[api.SandboxID]bool{}, stop: make(chan struct{})}, nil
}

// task runs f in a goroutine that Run waits for, or at once if Run has ended.
func (p *Pool) task(f func()) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		f()
		return
	}
	p.tasks.Go(f)
	p.mu.Unlock()
}

// make restores a machine and opens its program. It leaves nothing behind if it fails.
func (p *Pool) make(ctx context.Context, s *Spec, req api.CreateRequest) (_ *Machine, err error) {
	who := s.principal(p.cfg.OwnerKind)
	ctx, cancel := context.WithTimeoutCause(ctx, p.cfg.StartTimeout,
		api.Errorf(api.Timeout, "a machine of the function did not start within %s", p.cfg.StartTimeout))
	defer cancel()
	never := int64(0)
	req.FromSnapshot, req.Network, req.TTLSeconds = s.Snapshot, s.Network, &never
	box, err := p.boxes.Create(ctx, who, req)
	if err != nil {
		return nil, err
	}
	m := &Machine{Sandbox: box.ID, owner: who}
	p.hold(m)
	defer func() {
		if err != nil {
			p.Discard(ctx, m, func() {})
		}
	}()
	if err := p.open(ctx, m, s.Env); err != nil {
		return nil, err
	}
	return m, nil
}

// hold says that a machine is in use by this process.
func (p *Pool) hold(m *Machine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[m.Sandbox] = true
}

// open connects to the program in a machine that was restored or woken.
func (p *Pool) open(ctx context.Context, m *Machine, env map[string]string) error {
	g, err := p.boxes.Guest(ctx, m.owner, m.Sandbox)
	if err != nil {
		return err
	}
	m.Program = program.Open(g)
	if err := m.Program.Restored(ctx, env); err != nil {
		m.Program.Close()
		if because := context.Cause(ctx); because != nil {
			return because
		}
		return err
	}
	return nil
}

// Fresh restores a machine for one invocation. Give it to Discard.
func (p *Pool) Fresh(ctx context.Context, s Spec) (*Machine, error) {
	return p.make(ctx, &s, api.CreateRequest{
		TimeoutSeconds: int64((s.Lifetime + p.cfg.StartTimeout + time.Minute) / time.Second),
		Metadata:       map[string]string{RoleKey: roleIsolated, InstanceKey: p.cfg.Instance},
	})
}

// Discard removes a machine in the background, and calls done when it is gone.
func (p *Pool) Discard(ctx context.Context, m *Machine, done func()) {
	ctx = context.WithoutCancel(ctx)
	if m.Program != nil {
		m.Program.Close()
	}
	p.task(func() {
		p.remove(ctx, m.owner, m.Sandbox)
		p.mu.Lock()
		delete(p.live, m.Sandbox)
		p.mu.Unlock()
		done()
	})
}

// Times of removals.
const (
	removeTimeout = time.Minute
	firstPause    = 100 * time.Millisecond
	longestPause  = 10 * time.Second
)

// remove removes a sandbox, and tries again until it is gone or Run ends. A later process removes what is left.
func (p *Pool) remove(ctx context.Context, who auth.Principal, id api.SandboxID) bool {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		once, cancel := context.WithTimeout(ctx, removeTimeout)
		err := p.boxes.Delete(once, who, id)
		cancel()
		if err == nil || gone(err) {
			return true
		}
		p.log.Warn("a machine of a function is not removed yet; it is tried again", "sandbox", id, "err", err)
		select {
		case <-p.stop:
			return false
		case <-time.After(pause):
		}
	}
}

// gone reports whether an error says that a sandbox does not exist.
func gone(err error) bool {
	code := api.CodeOf(err)
	return code == api.NotFound || code == api.Gone
}

// Run hibernates and removes kept machines until ctx ends, and waits for what is under way.
func (p *Pool) Run(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.Interval)
	defer tick.Stop()
	defer p.tasks.Wait()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closed = true
		close(p.stop)
	}()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		p.idle(ctx)
		if time.Since(reported) < p.cfg.Stale/4 {
			continue
		}
		reported = time.Now()
		if err := p.report(ctx); err != nil && ctx.Err() == nil {
			p.log.Warn("machines of functions could not be reported", "err", err)
		}
	}
}

// Sweep removes the machines of a function that belong to a process that has ended.
func (p *Pool) Sweep(ctx context.Context, fn api.FunctionID, workspace api.Workspace) error {
	who := Principal(p.cfg.OwnerKind, workspace, fn)
	page, err := p.boxes.List(ctx, who, api.SandboxFilter{})
	if err != nil {
		return err
	}
	rows, err := p.rows(ctx, fn)
	if err != nil {
		return err
	}
	for i := range page.Sandboxes {
		box := &page.Sandboxes[i]
		if p.used(box, rows) {
			continue
		}
		if err := p.boxes.Delete(ctx, who, box.ID); err != nil && !gone(err) {
			return err
		}
	}
	return p.dropRows(ctx, rows)
}

// used reports whether a process may use a machine.
func (p *Pool) used(box *api.Sandbox, rows map[string]time.Time) bool {
	role, of := box.Metadata[RoleKey], box.Metadata[InstanceKey]
	if role != roleIsolated && role != roleShared {
		return true // it is not of this package
	}
	if of == p.cfg.Instance {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.live[box.ID] || time.Since(box.CreatedAt) < p.cfg.StartTimeout
	}
	if !p.db.Shared() { // there is no other process
		return false
	}
	if role == roleIsolated {
		return true // it ends by itself
	}
	seen, ok := rows[box.Metadata[machineKey]]
	return ok && time.Since(seen) < p.cfg.Stale
}
