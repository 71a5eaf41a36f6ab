// Package process runs programs for the guest agent and keeps their output.
//
// It owns the processes it started, their pipes and terminals, and what it keeps of those that ended. It
// does not know who asks or over what channel.
//
// # Output
//
// Of each stream the last RingSize bytes are kept. While somebody is attached, nothing that one of them
// has not yet taken is overwritten: the program waits. While nobody is, the oldest bytes give way and the
// program never waits. A process has ended when its own process has: what its children that live on write
// afterwards is read and dropped, so that they are not stopped by a closed pipe.
//
// # Groups
//
// Every process leads a session and a process group of its own. A deadline kills the group.
//
// # Concurrency
//
// All methods may be called at once. A process has a goroutine for each of its output streams, which ends
// when nobody can write to the stream any more. One Reaper collects all children.
package process
