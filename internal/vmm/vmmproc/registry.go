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
func (s *Registry) WithTimeout(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("%s took over %v", what, s.limit))
}

// Adopt finds the monitor that runs in dir and reads its record. It releases the Process that this
// registry may have for the monitor; the caller owns the returned process. If the monitor has exited,
// Adopt removes its files and returns vmm.ErrGone.
func (s *Registry) Adopt(dir string, record any) (*proc.Process, error) {
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
	if old := s.find(dir); old != nil {
		old.Release()
	}
	p, err := proc.Adopt(id)
	if errors.Is(err, proc.ErrGone) {
		return nil, errors.Join(vmm.ErrGone, s.clear(dir))
	}
	return p, err
}

// Kill implements vmm.Driver.
func (s *Registry) Kill(ctx context.Context, spec vmm.Spec) error {
	if l := s.find(spec.Dir); l != nil {
		return l.Kill(ctx)
	}
	ids, err := findMonitors(spec.Dir)
	if err != nil {
		return fmt.Errorf("kill machine %s: %w", spec.ID, err)
	}
	ctx, cancel := s.WithTimeout(ctx, "exit of the monitor")
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
	return s.clear(spec.Dir)
}

// Close releases all monitors and leaves them running, to be adopted later.
func (s *Registry) Close() error {
	s.mu.Lock()
	all := make([]*Process, 0, len(s.processes))
	for _, l := range s.processes {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.Release()
	}
	return nil
}

func (s *Registry) find(dir string) *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.processes[filepath.Clean(dir)]
}

func (s *Registry) add(l *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes[filepath.Clean(l.spec.Dir)] = l
}

// forget removes l, unless its directory already belongs to another machine.
func (s *Registry) forget(l *Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := filepath.Clean(l.spec.Dir); s.processes[key] == l {
		delete(s.processes, key)
	}
}
