package api

import "slices"

// Status is the state of a sandbox.
type Status string

// The states of a sandbox.
const (
	Creating    Status = "creating"
	Running     Status = "running"
	Paused      Status = "paused"
	Hibernating Status = "hibernating"
	Hibernated  Status = "hibernated"
	Waking      Status = "waking"
	Stopping    Status = "stopping"
	Deleted     Status = "deleted"
	Failed      Status = "failed"
)

// Statuses returns all states.
func Statuses() []Status {
	return []Status{Creating, Running, Paused, Hibernating, Hibernated, Waking, Stopping, Deleted, Failed}
}

// transitions is the single table of transitions. Every state but the last may change to stopping, for DELETE is legal
// in all of them, and every state that can go wrong may change to failed.
var transitions = map[Status][]Status{
	Creating:    {Running, Failed, Stopping},
	Running:     {Paused, Hibernating, Failed, Stopping},
	Paused:      {Running, Hibernating, Failed, Stopping},
	Hibernating: {Hibernated, Running, Paused, Failed, Stopping},
	Hibernated:  {Waking, Failed, Stopping},
	Waking:      {Running, Hibernated, Failed, Stopping},
	Failed:      {Waking, Running, Stopping},
	Stopping:    {Deleted},
	Deleted:     {},
}

// CanBecome reports whether a sandbox may change from s to next. No state changes to itself.
func (s Status) CanBecome(next Status) bool { return slices.Contains(transitions[s], next) }

// Valid reports whether s is a state.
func (s Status) Valid() bool { _, ok := transitions[s]; return ok }
