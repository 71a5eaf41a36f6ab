// Package jail keeps monitor processes within limits: control groups, users of their own, and resource limits.
//
// It owns one control group per name below a group that carries the configured prefix, in the unified
// hierarchy (version 2) where its cpu, memory and pids controllers can be used, otherwise in the three
// hierarchies of version 1. Which of them is decided once, by Probe, and can be printed; there is no mixture.
// It also owns a range of user ids that belong to nobody else, one for each index.
//
// It must not know what runs in a group.
//
// A Group's name is all that is needed to find it again after a restart: Adopt takes it over, Sweep removes
// those that nobody took. Destroy ends what still runs in a group and waits for that. All methods may be
// called at once from many goroutines.
package jail
