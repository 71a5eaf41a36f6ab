package machine

import (
	"fmt"
	"slices"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// state is the state of a machine in its record. It is finer than hostapi.State: it also says which operation was in
// progress when the process that wrote it was killed.
type state string

const (
	creating    state = "creating"
	running     state = "running"
	paused      state = "paused"
	hibernating state = "hibernating"
	hibernated  state = "hibernated"
	waking      state = "waking" // its guest may run if the image it hibernated in, if any, is consumed
	failed      state = "failed" // its monitor has ended, its disks are kept
	destroying  state = "destroying"
)

// transitions lists every possible change of state.
var transitions = map[state][]state{
	creating:    {running, destroying},
	running:     {paused, hibernating, hibernated, failed, destroying}, // hibernated: its wake is undone
	paused:      {running, hibernating, failed, destroying},
	hibernating: {hibernated, running, paused, failed, destroying},
	hibernated:  {waking, failed, destroying},
	waking:      {running, hibernated, failed, destroying},
	failed:      {waking, destroying},
	destroying:  {},
}

func (s state) canBecome(to state) bool { return s == to || slices.Contains(transitions[s], to) }

// publicState is the state that the contract has for each. A machine in transition is shown as what it was.
var publicState = map[state]hostapi.State{
	creating:    hostapi.Creating,
	running:     hostapi.Running,
	paused:      hostapi.Paused,
	hibernating: hostapi.Running,
	hibernated:  hostapi.Hibernated,
	waking:      hostapi.Hibernated,
	failed:      hostapi.Failed,
	destroying:  hostapi.Failed,
}

// requireState returns ErrWrongState unless the machine is in one of the given states, and ErrNoSpace if it waits for
// disk space.
func (mc *machine) requireState(op string, any ...state) error {
	if slices.Contains(any, mc.rec.State) {
		if mc.waiting() != nil {
			return errWaitsForSpace(op, mc.id)
		}
		return nil
	}
	return fmt.Errorf("%s machine %s: it is %s: %w", op, mc.id, mc.rec.State, hostapi.ErrWrongState)
}
