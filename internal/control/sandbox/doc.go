// Package sandbox is what users do with sandboxes: every verb of every face goes through its Service.
//
// It owns the life of a sandbox from the request to the tombstone: states, ownership, lifecycle, the
// registry of snapshots, events, declared ports, and what is kept after the end. It knows hosts only
// through hostapi, and neither HTTP nor how machines are made.
//
// Invariants. A row is written before the machine it stands for is asked for, and removed after that
// machine is gone, so a machine without a row belongs to nobody. States move only along the table of
// package api, and only with the sandbox's lock held. What belongs to another workspace answers exactly
// as what does not exist. A sandbox that ended leaves an Ending, which is served with the not_found.
//
// Every method may be called at once. Operations on one sandbox wait for each other; a deletion
// interrupts the operation before it. Run must be running for sandboxes to end by themselves and for
// deaths to be noticed; all errors are *api.Error.
package sandbox
