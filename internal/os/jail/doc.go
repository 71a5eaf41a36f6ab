// Package jail keeps monitor processes away from the host and within limits: control groups, users of their
// own, resource limits, and jails.
//
// It owns one control group per name below a group that carries the configured prefix, in the unified
// hierarchy (version 2) where its cpu, memory and pids controllers can be used, otherwise in the three
// hierarchies of version 1. Which of them is decided once, by Probe, and can be printed; there is no mixture.
// It also owns a range of user ids that belong to nobody else, one for each index, and a directory with copies
// of the programs that run in jails.
//
// It must not know what runs in a group.
//
// # How a jail is made
//
// Nothing is run before the program itself: a thread of this process makes the namespaces, builds the root
// directory in them, gives up rights, starts the program, and ends. Its mount namespace is a copy of one that
// was made before and holds only copies of programs and device nodes (prison), so the mounts of the host cost
// nothing and are never there. Files of a machine are mounts that are taken on the host and moved in.
//
// # Invariants
//
// A thread that entered a jail never runs anything else. No descriptor is inherited but those that were named.
// A process is in its group, and in its jail, from its first instruction on; limits of open files follow a
// moment later.
//
// A Group's name is all that is needed to find it again after a restart: Adopt takes it over, Sweep removes
// those that nobody took. Destroy ends what still runs in a group and waits for that. All methods may be
// called at once from many goroutines.
package jail
