package sandbox

import (
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
)

// Page is one page of sandboxes, newest first.
type Page struct {
	Sandboxes []api.Sandbox
	Next      string // cursor of the next page, "" on the last
}

// SnapshotPage is one page of snapshots, newest first.
type SnapshotPage struct {
	Snapshots []api.Snapshot
	Next      string // cursor of the next page, "" on the last
}

// Reason is why a sandbox ended.
type Reason string

// The reasons for which sandboxes end.
const (
	EndedByUser       Reason = "deleted"
	EndedIdle         Reason = "idle"      // its TTL passed without use
	EndedTimeout      Reason = "timeout"   // its fixed end came
	EndedPromotion    Reason = "promotion" // a sibling in its fork tree won
	EndedCrash        Reason = "crash"     // its monitor died
	EndedOutOfMemory  Reason = "out_of_memory"
	EndedHostLost     Reason = "host_lost" // its host says that it does not have the machine
	EndedCreateFailed Reason = "create_failed"
)

// Tombstone says when, why and by whom a sandbox ended. It is kept for the configured time.
type Tombstone struct {
	Sandbox   api.SandboxID
	Template  string
	Reason    Reason
	By        string // prefix of the key that deleted it; "" for the platform
	Message   string // a sentence for people
	Created   time.Time
	Ended     time.Time
	Metadata  map[string]string
	Processes []ProcessEnd // the last that were started through the API, oldest first
	Console   string       // the last 64 KiB, as valid UTF-8
	Usage     *api.Usage   // right before the end; nil if it did not run then
}

// ProcessEnd is a process started through the API: how it ended, or that it was last seen running.
type ProcessEnd = activity.ProcessEnd

// Logs is what a sandbox printed, alive or after its end.
type Logs struct {
	Console   string       // of the guest's kernel and first program, the last 64 KiB, as valid UTF-8
	Processes []ProcessEnd // as in Tombstone
	Tombstone *Tombstone   // nil while it lives
}
