package machine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/watchdog"
)

// watched implements watchdog.Machines.
type watched struct{ *Manager }

// Running implements watchdog.Machines.
func (m watched) Running() []watchdog.Machine {
	m.mu.Lock()
	all := slices.Collect(maps.Values(m.machines))
	m.mu.Unlock()
	var out []watchdog.Machine
	for _, mc := range all {
		mc.mu.Lock()
		if mc.rec.State == running && !mc.ephemeral && mc.waitingLocked() == nil {
			out = append(out, watchdog.Machine{ID: mc.id, Generation: mc.rec.Generation})
		}
		mc.mu.Unlock()
	}
	return out
}

// reportSilence reports that the guest of a machine does not reply, or does so again.
func (m *Manager) reportSilence(id hostapi.MachineID, since time.Time) {
	e := Event{Time: time.Now().UTC(), Machine: id, Type: "responsive"}
	if !since.IsZero() {
		e.Type, e.Reason = "unresponsive", "its guest does not reply"
	}
	m.deps.Emit(e)
}

// Probe asks the guest of a running machine for as little as possible. It returns ErrWrongState if the guest cannot be
// expected to answer: the machine does not run, or an operation is in progress.
func (m *Manager) Probe(ctx context.Context, id hostapi.MachineID) error {
	mc := m.find(id)
	if mc == nil {
		return notFound(id)
	}
	quiet := func() error {
		mc.mu.Lock()
		defer mc.mu.Unlock()
		if mc.rec.State != running || mc.waitingLocked() != nil || len(mc.busy) > 0 {
			return fmt.Errorf("probe machine %s: an operation is in progress: %w", id, hostapi.ErrWrongState)
		}
		return nil
	}
	if err := quiet(); err != nil {
		return err
	}
	g, err := m.guest(ctx, id)
	if err == nil {
		_, err = g.Stats(ctx)
	}
	if err != nil {
		return errors.Join(quiet(), err)
	}
	return nil
}
