package pool

import (
	"context"
	"slices"
	"strings"
	"time"

	"crypto/rand"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/store/functionstore"
)

// state is that of a kept machine.
type state uint8

const (
	starting state = iota
	ready
	sleeping // it is being hibernated
	asleep
	waking
	removing
)

// kept is a machine that serves one invocation after the other. Its fields are guarded by Pool.mu.
type kept struct {
	id      string
	spec    Spec
	machine *Machine // nil while it starts
	state   state
	load    int // invocations that it has or that wait for it
	used    time.Time
	retired bool          // it takes no further invocations
	changed chan struct{} // closed and replaced when the state changes
	err     error         // why it is being removed
}

// set changes the state. The lock is held.
func (k *kept) set(s state) {
	k.state = s
	close(k.changed)
	k.changed = make(chan struct{})
}

// Lease is a place in a machine that is kept. Release it.
type Lease struct {
	*Machine
	Cold bool // the machine was restored or woken for it
	pool *Pool
	kept *kept
	ctx  context.Context // of the removal of a broken machine
}

// Release gives a place back. A broken machine is replaced.
func (l *Lease) Release(broken bool) {
	p, k := l.pool, l.kept
	p.mu.Lock()
	defer p.mu.Unlock()
	k.load--
	k.used = time.Now()
	if k.state == ready && (broken || k.retired && k.load == 0) {
		p.drop(l.ctx, k, nil)
	}
}

// Shared returns a place in a machine of a version. It waits until the machine takes invocations.
func (p *Pool) Shared(ctx context.Context, s Spec) (*Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	cold := false
	for {
		k := p.choose(ctx, &s)
		if k == nil {
			if err := p.room(ctx, &s); err != nil {
				return nil, err
			}
			continue
		}
		k.load++
		if k.state == asleep {
			k.set(waking)
			p.begin(ctx, k, p.wake)
		}
		for k.state != ready && k.state != removing && k.state != asleep {
			cold = true
			changed := k.changed
			p.mu.Unlock()
			err := wait(ctx, changed)
			p.mu.Lock()
			if err != nil {
				k.load--
				return nil, err
			}
		}
		if k.state == ready && !k.retired {
			return &Lease{Machine: k.machine, Cold: cold, pool: p, kept: k, ctx: context.WithoutCancel(ctx)}, nil
		}
		k.load--
		if k.state == ready && k.load == 0 {
			p.drop(ctx, k, nil)
		}
		lost := k.machine != nil && gone(k.err) // while it slept: another one takes its place
		if k.err != nil && !lost {
			return nil, k.err
		}
	}
}

func wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-changed:
		return nil
	}
}

// choose returns the best machine of a version with a free place, and starts one if none has; nil if there are too
// many. The lock is held.
func (p *Pool) choose(ctx context.Context, s *Spec) *kept {
	var best *kept
	n := 0
	for _, k := range p.kept[s.Function] {
		if k.spec.Version != s.Version {
			continue
		}
		n++
		if k.spec.Revision != s.Revision || k.spec.Snapshot != s.Snapshot {
			p.retire(ctx, k)
		}
		if k.retired || k.state == removing || k.load >= max(s.Concurrency, 1) {
			continue
		}
		if best == nil || rank(k) < rank(best) || rank(k) == rank(best) && k.load < best.load {
			best = k
		}
	}
	if best != nil || n >= max(s.Machines, 1) {
		return best
	}
	k := &kept{id: strings.ToLower(rand.Text()), spec: *s, changed: make(chan struct{}), used: time.Now()}
	p.kept[s.Function] = append(p.kept[s.Function], k)
	p.begin(ctx, k, p.start)
	return k
}

// rank orders machines: the smaller, the sooner an invocation begins.
func rank(k *kept) int {
	switch k.state {
	case ready:
		return 0
	case starting, waking:
		return 1
	case asleep:
		return 2
	}
	return 3
}

// room waits until a machine of a version has changed. The lock is held, and given up meanwhile.
func (p *Pool) room(ctx context.Context, s *Spec) error {
	for _, k := range p.kept[s.Function] {
		if k.spec.Version != s.Version {
			continue
		}
		if k.state != removing && !k.retired {
			continue
		}
		changed := k.changed
		p.mu.Unlock()
		err := wait(ctx, changed)
		p.mu.Lock()
		return err
	}
	return api.Errorf(api.RateLimited, "every machine of the function is busy: try again later").
		With("retry_after_seconds", 1)
}

// begin runs an operation on a machine in the background. The lock is held.
func (p *Pool) begin(ctx context.Context, k *kept, f func(ctx context.Context, k *kept) error) {
	ctx = context.WithoutCancel(ctx)
	work := func() {
		ctx, cancel := context.WithTimeout(ctx, p.cfg.StartTimeout)
		defer cancel()
		err := f(ctx, k)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil {
			p.drop(ctx, k, err)
		}
	}
	if !p.closed {
		p.tasks.Go(work)
		return
	}
	p.drop(ctx, k, api.Errorf(api.Unavailable, "the server is stopping"))
}

// start makes the machine of k.
func (p *Pool) start(ctx context.Context, k *kept) error {
	row := &functionstore.Machine{ID: k.id, Function: string(k.spec.Function), Version: k.spec.Version,
		Instance: p.cfg.Instance, State: functionstore.MachineStarting, Created: store.Micros(time.Now()),
		Used: store.Micros(time.Now())}
	err := p.write(ctx, "function machine", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.InsertMachine(ctx, row)
	})
	if err != nil {
		return err
	}
	m, err := p.make(ctx, &k.spec, api.CreateRequest{
		Metadata: map[string]string{RoleKey: roleShared, InstanceKey: p.cfg.Instance, machineKey: k.id},
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	k.machine = m
	p.mu.Unlock()
	return p.turn(ctx, k, ready, functionstore.MachineReady)
}

// turn writes the new state of a machine and takes it over.
func (p *Pool) turn(ctx context.Context, k *kept, s state, name string) error {
	row := &functionstore.Machine{ID: k.id, Sandbox: string(k.machine.Sandbox), State: name}
	err := p.write(ctx, "function machine "+name, func(ctx context.Context, tx functionstore.Tx) error {
		return tx.PutMachineState(ctx, row)
	})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if k.state != removing {
		k.used = time.Now()
		k.set(s)
	}
	return nil
}

func (p *Pool) wake(ctx context.Context, k *kept) error {
	if _, err := p.boxes.Wake(ctx, k.machine.owner, k.machine.Sandbox); err != nil {
		return err
	}
	m := &Machine{Sandbox: k.machine.Sandbox, owner: k.machine.owner}
	if err := p.open(ctx, m, k.spec.Env); err != nil {
		return err
	}
	p.mu.Lock()
	k.machine = m
	p.mu.Unlock()
	return p.turn(ctx, k, ready, functionstore.MachineReady)
}

func (p *Pool) sleep(ctx context.Context, k *kept) error {
	k.machine.Program.Close()
	if _, err := p.boxes.Hibernate(ctx, k.machine.owner, k.machine.Sandbox); err != nil {
		return err
	}
	return p.turn(ctx, k, asleep, functionstore.MachineAsleep)
}

// idle hibernates machines that have had nothing to do, and removes those that nothing needs.
func (p *Pool) idle(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range p.kept {
		for _, k := range slices.Clone(all) {
			switch {
			case k.load > 0:
			case k.retired && (k.state == ready || k.state == asleep):
				p.drop(ctx, k, nil)
			case k.state == ready && time.Since(k.used) >= k.spec.Idle:
				k.set(sleeping)
				p.begin(ctx, k, p.sleep)
			}
		}
	}
}

// retire keeps further invocations from a machine, which is removed when it has none. The lock is held.
func (p *Pool) retire(ctx context.Context, k *kept) {
	k.retired = true
	if k.load == 0 && (k.state == ready || k.state == asleep) {
		p.drop(ctx, k, nil)
	}
}

// drop removes a machine in the background. It counts until it is gone. The lock is held.
func (p *Pool) drop(ctx context.Context, k *kept, err error) {
	if k.state == removing {
		return
	}
	k.err = err
	k.set(removing)
	m := k.machine
	ctx = context.WithoutCancel(ctx)
	work := func() {
		if m != nil {
			if m.Program != nil {
				m.Program.Close()
			}
			if !p.remove(ctx, m.owner, m.Sandbox) {
				return
			}
		}
		ctx, cancel := context.WithTimeout(ctx, removeTimeout)
		defer cancel()
		err := p.write(ctx, "function machine removed", func(ctx context.Context, tx functionstore.Tx) error {
			return tx.DeleteMachine(ctx, k.id)
		})
		if err != nil { // Sweep removes the row
			p.log.Warn("the row of a machine of a function is not removed yet", "machine", k.id, "err", err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if m != nil {
			delete(p.live, m.Sandbox)
		}
		all := slices.DeleteFunc(p.kept[k.spec.Function], func(o *kept) bool { return o == k })
		if p.kept[k.spec.Function] = all; len(all) == 0 {
			delete(p.kept, k.spec.Function)
		}
		close(k.changed) // the last change
	}
	if !p.closed {
		p.tasks.Go(work)
	}
}

// Retain retires the kept machines of a function whose versions are not in served.
func (p *Pool) Retain(ctx context.Context, fn api.FunctionID, served []int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range slices.Clone(p.kept[fn]) {
		if !slices.Contains(served, k.spec.Version) {
			p.retire(ctx, k)
		}
	}
}

// Forget removes the kept machines of a function at once, and returns when none is left.
func (p *Pool) Forget(ctx context.Context, fn api.FunctionID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.kept[fn]) > 0 && !p.closed {
		for _, k := range slices.Clone(p.kept[fn]) {
			k.retired = true
			if k.state == ready || k.state == asleep {
				p.drop(ctx, k, nil)
			}
		}
		changed := p.kept[fn][0].changed
		p.mu.Unlock()
		err := wait(ctx, changed)
		p.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Counts returns how many machines of a function are kept, and how many of them are hibernated.
func (p *Pool) Counts(fn api.FunctionID) (all, hibernated int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kept[fn] {
		all++
		if k.state == asleep {
			hibernated++
		}
	}
	return all, hibernated
}

func (p *Pool) write(ctx context.Context, op string, f func(context.Context, functionstore.Tx) error) error {
	return p.db.Write(ctx, op, func(ctx context.Context, tx *store.Tx) error {
		return f(ctx, functionstore.In(tx))
	})
}

// report says that the machines of this process are in use.
func (p *Pool) report(ctx context.Context) error {
	return p.write(ctx, "function machines used", func(ctx context.Context, tx functionstore.Tx) error {
		return tx.TouchMachines(ctx, p.cfg.Instance, store.Micros(time.Now()))
	})
}

// rows reads when the process of each kept machine of a function has last reported it.
func (p *Pool) rows(ctx context.Context, fn api.FunctionID) (map[string]time.Time, error) {
	rows, err := functionstore.In(p.db.Read()).Machines(ctx, string(fn))
	out := map[string]time.Time{}
	for _, r := range rows {
		if r.Instance != p.cfg.Instance {
			out[r.ID] = store.Time(r.Used)
		}
	}
	return out, err
}

// dropRows removes rows of machines whose process has ended.
func (p *Pool) dropRows(ctx context.Context, rows map[string]time.Time) error {
	for id, seen := range rows {
		if p.db.Shared() && time.Since(seen) < p.cfg.Stale {
			continue
		}
		err := p.write(ctx, "function machine removed", func(ctx context.Context, tx functionstore.Tx) error {
			return tx.DeleteMachine(ctx, id)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
