package vmmproc

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Registry holds the monitors of one driver.
type Registry struct {
	limit time.Duration
	clear func(dir string) error

	mu        sync.Mutex
	processes map[string]*Process // by directory
}

// NewRegistry returns an empty registry. limit bounds each wait for a monitor. clear removes the
// monitor's files from a machine directory and must succeed if there are none.
func NewRegistry(limit time.Duration, clear func(dir string) error) *Registry {
	return &Registry{limit: limit, clear: clear, processes: map[string]*Process{}}
}

// WithTimeout bounds one wait for a monitor. what names the operation in the error.
func (r *Registry) WithTimeout(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("%s took over %v", what, r.limit))
}

// Adopt finds the monitor that runs in dir and reads its record. It releases the Process that this
// registry may have for the monitor; the caller owns the returned process. If the monitor has exited,
// Adopt removes its files and returns vmm.ErrGone.
func (r *Registry) Adopt(dir string, record any) (*proc.Process, error) {
	ok, err := ReadRecord(dir, record)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, vmm.ErrGone
	}
	id, _, err := recordedProcess(dir)
	if err != nil {
		return nil, err
	}
	if old := r.find(dir); old != nil {
		old.Release()
	}
	p, err := proc.Adopt(id)
	if errors.Is(err, proc.ErrGone) {
		return nil, errors.Join(vmm.ErrGone, r.clear(dir))
	}
	return p, err
}

// Kill implements vmm.Driver.
func (r *Registry) Kill(ctx context.Context, spec vmm.Spec) error {
	if l := r.find(spec.Dir); l != nil {
		return l.Kill(ctx)
	}
	ids, err := findMonitors(spec.Dir)
	if err != nil {
		return fmt.Errorf("kill machine %s: %w", spec.ID, err)
	}
	ctx, cancel := r.WithTimeout(ctx, "exit of the monitor")
	defer cancel()
	for _, id := range ids {
		p, err := proc.Adopt(id)
		if errors.Is(err, proc.ErrGone) {
			continue
		}
		if err == nil {
			err = errors.Join(p.Kill(ctx), p.Release())
		}
		if err != nil {
			return fmt.Errorf("kill machine %s: %w", spec.ID, err)
		}
	}
	return r.clear(spec.Dir)
}

// Close releases all monitors and leaves them running, to be adopted later.
func (r *Registry) Close() error {
	r.mu.Lock()
	all := make([]*Process, 0, len(r.processes))
	for _, p := range r.processes {
		all = append(all, p)
	}
	r.mu.Unlock()
	for _, p := range all {
		p.Release()
	}
	return nil
}

func (r *Registry) find(dir string) *Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.processes[filepath.Clean(dir)]
}

func (r *Registry) add(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.processes[filepath.Clean(p.spec.Dir)] = p
}

// forget removes p, unless its directory already belongs to another machine.
func (r *Registry) forget(p *Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if key := filepath.Clean(p.spec.Dir); r.processes[key] == p {
		delete(r.processes, key)
	}
}
