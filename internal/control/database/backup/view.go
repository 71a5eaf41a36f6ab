package backup

import (
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Reasons returns a function that makes the text of an error fit for a caller: texts may have paths of the host and
// addresses of its object store, which are for those who operate the node.
func Reasons(operator bool) func(string) string {
	return func(text string) string {
		if text == "" || operator {
			return text
		}
		return "it failed: keys that may operate the node see why"
	}
}

// FillStatus adds the state of the backups.
func FillStatus(out *api.DatabaseBackups, status Status, why func(string) string) {
	out.Running, out.LastBaseAt, out.NextBaseAt = status.Running, timeOrNil(status.Based), timeOrNil(status.BaseDue)
	out.BaseError, out.VerifiedAt = why(status.BaseError), timeOrNil(status.Scrubbed)
	out.VerifyError = why(status.ScrubError)
	if status.Running {
		out.Relay = relayOf(status, why)
	}
}

func timeOrNil(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	at = at.UTC()
	return &at
}

func relayOf(status Status, why func(string) string) *api.DatabaseRelay {
	r := status.Relay
	out := &api.DatabaseRelay{
		State: string(r.State), LagBytes: r.Lag(), UploadLagBytes: r.UploadLag(), SpoolBytes: r.SpoolBytes,
		CoveredUntil: timeOrNil(r.Covered), ConnectError: why(r.ConnectError), UploadError: why(r.UploadError),
	}
	if h := r.Hole; h != nil {
		out.Hole = &api.DatabaseHole{Timeline: uint32(h.Timeline), From: h.From.String(), To: h.To.String()}
	}
	return out
}

// FillContents adds what the archive of a database has.
func FillContents(out *api.DatabaseBackups, c Contents) {
	out.StoredBytes = c.Stored
	for _, b := range c.Bases {
		out.Bases = append(out.Bases, api.DatabaseBase{
			ID: b.ID, Timeline: uint32(b.Timeline), LSN: b.Stop.String(), StartedAt: b.Started.UTC(),
			FinishedAt: b.Finished.UTC(), Bytes: b.Bytes,
		})
	}
	for _, w := range c.Windows {
		out.Windows = append(out.Windows, api.DatabaseWindow{
			Timeline: uint32(w.Timeline), Base: w.Base, From: w.FromTime.UTC(), To: timeOrNil(w.ToTime),
			FromLSN: w.From.String(), ToLSN: w.To.String(),
		})
	}
}

// ViewRehearsal shows a rehearsal of a restore.
func ViewRehearsal(r store.DatabaseRehearsal, why func(string) string) api.DatabaseRehearsal {
	out := api.DatabaseRehearsal{
		ID: r.ID, State: r.State, Error: why(r.Error), Bytes: r.Bytes, StartedAt: store.Time(r.Started).UTC(),
	}
	if r.Ended > 0 {
		out.EndedAt = timeOrNil(store.Time(r.Ended))
	}
	return out
}
