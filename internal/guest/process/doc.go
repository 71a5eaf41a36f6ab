// Package process runs programs for the guest agent and keeps their output.
//
// It owns the processes it started, their pipes and terminals, and the output and exit of processes that ended
// lately. It does not know its callers or the channel they use.
//
// # Output
//
// The package keeps the last RingSize bytes of each stream. While a follower is attached, bytes that a follower has
// not read yet are not overwritten: the program waits. Without a follower, new bytes replace the oldest and the
// program never waits. A process ends when its own process exits: later output of children that live on is read and
// dropped, so that a closed pipe does not stop them.
//
// # Groups
//
// Every process leads a session and a process group of its own. A deadline kills the group.
//
// # Concurrency
//
// All methods are safe for concurrent use. A process has a goroutine for each of its output streams, which ends when
// no process can write to the stream. One Reaper collects all children.
package process
