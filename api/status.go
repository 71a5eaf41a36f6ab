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

// Statuses lists all states.
func Statuses() []Status {
	return []Status{Creating, Running, Paused, Hibernating, Hibernated, Waking, Stopping, Deleted, Failed}
}

// transitions is the one table of moves. Every state but the last may move to stopping, for DELETE is legal
// in all of them, and every state that can go wrong may move to failed.
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

// CanBecome tells whether a sandbox may move from s to next. Staying is not a move.
func (s Status) CanBecome(next Status) bool { return slices.Contains(transitions[s], next) }

// Valid tells whether s is a state.
func (s Status) Valid() bool { _, ok := transitions[s]; return ok }
