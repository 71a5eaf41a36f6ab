package database_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/database/archive"
	"github.com/pandastack/pandastack/internal/control/database/backup"
	"github.com/pandastack/pandastack/internal/control/database/walrelay"
)

// The state of the backups has what the keeper says, in full for those who operate the node.
func TestBackupState(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	d := w.made()
	got, err := w.Backups(t.Context(), alice, d.ID)
	if err != nil || got.Running || got.Relay != nil || got.Bases == nil || got.Windows == nil ||
		got.Rehearsals == nil {
		t.Errorf("before they begin: %+v, %v; want empty lists", got, err)
	}
	w.must(w.Reconcile(t.Context()))
	at := time.Unix(1_700_000_000, 0)
	r.based = at
	r.status = backup.Status{Running: true, ScrubError: "block /secret/1", Relay: walrelay.Status{
		State: walrelay.SpoolFull, Server: 300, Flushed: 200, Uploaded: 50, SpoolBytes: 7, Covered: at,
		UploadError: "put /secret/2", Hole: &archive.Hole{Timeline: 1, From: 16, To: 32},
	}}
	r.content = backup.Contents{
		Bases: []archive.Base{{ID: "b1", Timeline: 1, Stop: 16, Started: at, Finished: at, Bytes: 9}}, Stored: 5,
		Windows: []archive.Window{{Timeline: 1, Base: "b1", From: 16, To: 32, FromTime: at}},
	}
	r.fail["contents"] = errors.New("list /secret/3")
	operator := alice
	operator.Operator = true
	got, err = w.Backups(t.Context(), operator, d.ID)
	w.must(err)
	relay := got.Relay
	if !got.Running || relay == nil || relay.State != "spool_full" || relay.LagBytes != 100 ||
		relay.UploadLagBytes != 150 || relay.SpoolBytes != 7 || !relay.CoveredUntil.Equal(at) ||
		relay.Hole == nil || *relay.Hole != (api.DatabaseHole{Timeline: 1, From: "0/10", To: "0/20"}) {
		t.Errorf("the relay is %+v", relay)
	}
	if len(got.Bases) != 1 || got.Bases[0].LSN != "0/10" || got.Bases[0].Bytes != 9 || got.StoredBytes != 5 ||
		len(got.Windows) != 1 || got.Windows[0].To != nil || got.Windows[0].ToLSN != "0/20" ||
		!got.LastBaseAt.Equal(at) || got.NextBaseAt != nil {
		t.Errorf("the archive is %+v", got)
	}
	if got.ArchiveError != "list /secret/3" || relay.UploadError != "put /secret/2" || got.VerifyError == "" {
		t.Errorf("an operator does not see the errors: %+v %+v", got, relay)
	}
	got, err = w.Backups(t.Context(), alice, d.ID)
	if err != nil || got.ArchiveError == "" || got.Relay.UploadError == "" || got.Relay.ConnectError != "" ||
		strings.Contains(fmt.Sprintf("%+v %+v", got, got.Relay), "secret") {
		t.Errorf("a key that does not operate the node sees %+v %+v, %v", got, got.Relay, err)
	}
}

// Base backups and rehearsals are ordered by callers of the workspace, and refused with a reason.
func TestBackupOrders(t *testing.T) {
	r := newRecorder()
	w := newFixture(t, withBackups(r))
	d := w.made()
	refused := func(what string, p auth.Principal, want api.Code) {
		t.Helper()
		if _, err := w.Rehearse(t.Context(), p, d.ID); api.CodeOf(err) != want {
			t.Errorf("%s: Rehearse = %v, want %s", what, err, want)
		}
	}
	refused("before the backups begin", alice, api.Unavailable)
	r.fail["order"] = backup.ErrNotRunning
	if _, err := w.BackUp(t.Context(), alice, d.ID); api.CodeOf(err) != api.Unavailable {
		t.Errorf("BackUp before the backups begin = %v, want unavailable", err)
	}
	w.must(w.Reconcile(t.Context()))
	refused("without a base backup", alice, api.WrongState)
	r.based = time.Now()
	r.fail["rehearse"] = backup.ErrRehearsing
	refused("while one runs", alice, api.Conflict)
	r.fail["rehearse"] = backup.ErrBusy
	refused("while many wait", alice, api.Unavailable)
	refused("a stranger", bob, api.NotFound)
	if _, err := w.BackUp(t.Context(), bob, d.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("BackUp by a stranger = %v, want not_found", err)
	}
	if _, err := w.Backups(t.Context(), bob, d.ID); api.CodeOf(err) != api.NotFound {
		t.Errorf("Backups by a stranger = %v, want not_found", err)
	}
	r.take()
	a, err := w.BackUp(t.Context(), alice, d.ID)
	if err != nil || a.ID != d.ID || a.Status != "ordered" {
		t.Errorf("BackUp = %+v, %v", a, err)
	}
	got, err := w.Rehearse(t.Context(), alice, d.ID)
	if err != nil || got.State != "running" || got.ID != "reh1" || got.EndedAt != nil {
		t.Errorf("Rehearse = %+v, %v", got, err)
	}
	r.wants(t, "two orders", "order rehearse")
}
