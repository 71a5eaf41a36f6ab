// Package sandbox implements every verb on sandboxes: all faces go through its Service.
//
// It owns the life of a sandbox from the request to the tombstone: states, ownership, lifecycle, the
// registry of snapshots, events, declared ports, and what is kept after the end. It knows hosts only
// through hostapi; it knows neither HTTP nor how machines are made.
//
// # Controllers
//
// What must become true although no caller waits for it is the work of controllers, each of which sees only
// the few operations that it needs: the reconciler compares store and host, a hostevents.Dispatcher acts on what
// the host reports, the reaper ends or hibernates sandboxes that are due, an activity.Recorder writes last uses and
// what was last seen, a quota.Enforcer hibernates the sandboxes of suspended workspaces, and the expirer removes
// what was kept long enough. Service.Run runs them.
//
// # Invariants
//
// A row is written before its machine is requested and removed after the machine is destroyed, so a machine
// without a row has no owner. States change only along the table of package api, and only with the sandbox's
// lock held. Calls for a sandbox of another workspace have the same result as for one that does not exist. A
// sandbox that ended leaves a Tombstone, which is served with the not_found.
//
// Absent is not dead: a sandbox ends for want of its machine only when the host that had the machine says
// that it does not exist (hostapi.ErrNotFound from Get), or reports its death. A machine that is missing from a
// list, or whose host cannot be asked, is in an unknown state, and the sandbox keeps its own.
//
// # Ownership
//
// Machines and snapshots have a label that names their owner (hostapi.LabelOwner). This package looks after
// those of sandboxes and leaves the others alone. A sandbox may in turn belong to an object of another
// service, such as a database; its record and its machine's labels then name that object. Users of the workspace can
// read it; the verbs that use or change it are for a Principal with the object as Owner.
//
// # Concurrency
//
// All methods may be called concurrently. Operations on one sandbox wait for each other; a deletion
// interrupts the operation before it. Run must be running for sandboxes to end by themselves and for deaths
// to be noticed. All errors are *api.Error.
package sandbox
