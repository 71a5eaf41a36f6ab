package process

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/passwd"
)

// Limits of a table.
const (
	maxRunning = 512
	maxEnded   = 64
	keepEnded  = 10 * time.Minute
	maxTag     = guestapi.MaxName
	killWait   = 20 * time.Second
)

// Config configures a table.
type Config struct {
	Reaper *Reaper
	Users  passwd.Database
	// Cgroup is an open directory of a version 2 cgroup that every process starts in; 0: none.
	Cgroup int
	// OutputBytes limits the output kept of all processes together; 0: 32 MiB.
	OutputBytes int64
}

// Table holds the processes of one machine.
type Table struct {
	cfg    Config
	users  passwd.Cache
	budget budget

	wg sync.WaitGroup // the goroutines that read output

	forks sync.Mutex // held while a process is forked
	held  bool       // no process may be started; guarded by forks

	mu        sync.Mutex
	running   map[int]*Process
	tags      map[string]*Process // of running processes
	endedList []*ended            // ended processes, oldest first
	env       map[string]string
	user      string
}

type ended struct {
	p    *Process
	when time.Time
}

// New returns an empty table.
func New(cfg Config) *Table {
	t := &Table{
		cfg:     cfg,
		users:   passwd.Cache{Database: cfg.Users},
		running: make(map[int]*Process),
		tags:    make(map[string]*Process),
	}
	if cfg.OutputBytes == 0 {
		cfg.OutputBytes = 32 << 20
	}
	t.budget.left.Store(cfg.OutputBytes)
	return t
}

// SetDefaults sets the environment and the user of processes started from now on.
func (t *Table) SetDefaults(env map[string]string, user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.env, t.user = env, user
}

// DefaultUser returns the user of processes whose spec names none.
func (t *Table) DefaultUser() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.user
}

// Hold refuses new processes until Release. It waits until no process is being forked: a fork into a frozen cgroup
// would block the whole program.
func (t *Table) Hold() {
	t.forks.Lock()
	defer t.forks.Unlock()
	t.held = true
}

// Release ends the effect of Hold.
func (t *Table) Release() {
	t.forks.Lock()
	defer t.forks.Unlock()
	t.held = false
}

// Start runs a program; see guestapi.Guest. If the program cannot be run, Start returns an error and no process.
func (t *Table) Start(_ context.Context, spec guestapi.ProcessSpec) (guestapi.Process, error) {
	l, err := t.plan(&spec)
	if err != nil {
		return nil, err
	}
	t.forks.Lock()
	defer t.forks.Unlock()
	if t.held {
		return nil, fmt.Errorf("%w: the machine is frozen", guestapi.ErrBusy)
	}
	if err := t.admit(spec.Tag); err != nil {
		return nil, err
	}
	p := &Process{t: t, spec: spec, dir: l.dir, user: l.user.Name,
		followers: make(map[*follower]struct{}), gone: make(chan struct{})}
	if err := p.start(l); err != nil {
		return nil, err
	}
	return p.begin(), nil
}

// begin adds a started process to the table, follows it and reads its output.
func (p *Process) begin() *follower {
	t := p.t
	f := p.follow(guestapi.Offsets{})
	t.mu.Lock()
	if p.running() { // otherwise it is listed among the ended processes
		t.running[p.pid] = p
		if p.spec.Tag != "" {
			t.tags[p.spec.Tag] = p
		}
	}
	t.mu.Unlock()
	for _, o := range p.outputs {
		t.wg.Go(o.readAll)
	}
	return f
}

func (t *Table) admit(tag string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.running) >= maxRunning {
		return fmt.Errorf("%w: %d processes run", guestapi.ErrBusy, len(t.running))
	}
	if _, taken := t.tags[tag]; taken {
		return fmt.Errorf("tag %q: %w", tag, guestapi.ErrExists)
	}
	return nil
}

// ended moves a process to the list of ended ones.
func (t *Table) ended(p *Process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[p.pid] == p {
		delete(t.running, p.pid)
	}
	if t.tags[p.spec.Tag] == p {
		delete(t.tags, p.spec.Tag)
	}
	t.endedList = append(t.endedList, &ended{p, time.Now()})
	t.purge()
}

// purge forgets processes that ended long ago, or are too many. The caller holds mu.
func (t *Table) purge() {
	n := max(0, len(t.endedList)-maxEnded)
	for n < len(t.endedList) && time.Since(t.endedList[n].when) > keepEnded {
		n++
	}
	for _, e := range t.endedList[:n] {
		e.p.forget()
	}
	t.endedList = slices.Delete(t.endedList, 0, n)
}

// forget frees the memory of the output once the process has no follower.
func (p *Process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.followers) > 0 || p.exit == nil {
		return // the garbage collector frees it later
	}
	for _, o := range p.outputs {
		o.ring.free()
	}
}

func (t *Table) find(ref guestapi.ProcessRef) (*Process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.purge()
	if p := t.tags[ref.Tag]; p != nil && ref.Tag != "" {
		return p, nil
	}
	if p := t.running[int(ref.PID)]; p != nil && ref.Tag == "" {
		return p, nil
	}
	for _, e := range slices.Backward(t.endedList) {
		if ref.Tag == "" && e.p.pid == int(ref.PID) || ref.Tag != "" && e.p.spec.Tag == ref.Tag {
			return e.p, nil
		}
	}
	return nil, fmt.Errorf("process: %w", guestapi.ErrNotFound)
}

// Attach follows a process; see guestapi.Guest.
func (t *Table) Attach(_ context.Context, ref guestapi.ProcessRef, from guestapi.Offsets) (guestapi.Process, error) {
	p, err := t.find(ref)
	if err != nil {
		return nil, err
	}
	return p.follow(from), nil
}

// Processes lists the running processes and those that ended lately.
func (t *Table) Processes(context.Context) ([]guestapi.ProcessInfo, error) {
	t.mu.Lock()
	t.purge()
	var all []*Process
	for _, e := range t.endedList {
		all = append(all, e.p)
	}
	for _, p := range t.running {
		all = append(all, p)
	}
	t.mu.Unlock()
	infos := make([]guestapi.ProcessInfo, 0, len(all))
	for _, p := range all {
		infos = append(infos, p.info())
	}
	slices.SortStableFunc(infos, func(a, b guestapi.ProcessInfo) int { return a.Started.Compare(b.Started) })
	return infos, nil
}

// Signal sends a signal to a process or its group; see guestapi.Guest.
func (t *Table) Signal(ctx context.Context, ref guestapi.ProcessRef, signal int, group bool) error {
	p, err := t.find(ref)
	if err != nil {
		return err
	}
	err = t.cfg.Reaper.signal(p.pid, unix.Signal(signal), group)
	switch err {
	case nil:
		if signal == int(unix.SIGKILL) {
			return p.awaitEnd(ctx)
		}
		return nil
	case unix.ESRCH:
		return fmt.Errorf("process has ended: %w", guestapi.ErrNotFound)
	case unix.EINVAL:
		return fmt.Errorf("%w: signal %d", guestapi.ErrInvalid, signal)
	}
	return fmt.Errorf("signal process: %w", err)
}

// awaitEnd waits until a killed process is no longer listed as running, for at most killWait. A process that waits
// for a device does not end before the device responds.
func (p *Process) awaitEnd(ctx context.Context) error {
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Close kills the groups of all processes and returns when all readers of their output have ended.
func (t *Table) Close() {
	t.Hold()
	t.mu.Lock()
	var all []*Process
	for _, p := range t.running {
		all = append(all, p)
	}
	for _, e := range t.endedList {
		all = append(all, e.p)
	}
	t.mu.Unlock()
	for _, p := range all {
		_ = t.cfg.Reaper.signal(p.pid, unix.SIGKILL, true) // fails if the group has ended already
		p.abandon()
	}
	t.wg.Wait()
}

// abandon closes all followers and output files of a process.
func (p *Process) abandon() {
	p.mu.Lock()
	var all []*follower
	for f := range p.followers {
		all = append(all, f)
	}
	p.mu.Unlock()
	for _, f := range all {
		_ = f.Close() // never fails
	}
	for _, o := range p.outputs {
		_ = o.file.Close() // ends its reader
	}
}
