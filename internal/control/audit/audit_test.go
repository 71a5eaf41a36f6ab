package audit_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/audit"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

func TestAudit(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{DSN: filepath.Join(t.TempDir(), "c.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := audit.New(db, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	alice := auth.Principal{Workspace: "alice", KeyPrefix: "pds_1", Admin: true}
	began := time.Now()
	for n := range 300 {
		l.Record(
			ctx,
			audit.Entry{
				Principal: alice,
				Action:    "create",
				Target:    fmt.Sprint("t", n),
				Outcome:   "ok",
				Took:      time.Millisecond,
			},
		)
	}
	l.Record(ctx, audit.Entry{Principal: auth.Principal{Workspace: "bob"}, Action: strings.Repeat("x", 1000) + "\x00"})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	got, err := l.List(t.Context(), alice, audit.Query{Since: began.Add(-time.Second), Limit: 1000})
	if err != nil || len(got) != 300 || got[0].Target != "t299" || got[299].Target != "t0" ||
		got[0].Took != time.Millisecond ||
		got[0].Principal.KeyPrefix != "pds_1" {
		t.Errorf("List = %d entries, %v; want 300, newest first", len(got), err)
	}
	if got, err := l.List(t.Context(), alice, audit.Query{Target: "t7"}); err != nil || len(got) != 1 {
		t.Errorf("List of target t7 = %v, %v; want one entry", got, err)
	}
	if _, err := l.List(t.Context(), auth.Principal{Workspace: "alice"}, audit.Query{}); api.CodeOf(
		err,
	) != api.Forbidden {
		t.Errorf("List by a member: got %v, want forbidden", err)
	}
}
