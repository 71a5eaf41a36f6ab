package sandbox_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/hostapi/hosttest"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/control/store"
	"github.com/pandastack/pandastack/internal/control/template"
)

func benchService(b *testing.B) *sandbox.Service {
	b.Helper()
	db, err := store.Open(context.WithoutCancel(b.Context()), store.Config{DSN: filepath.Join(b.TempDir(), "c.db")})
	if err != nil {
		b.Fatal(err)
	}
	host := hosttest.New()
	b.Cleanup(func() {
		host.Close()
		_ = db.Close() // the benchmark is over
	})
	templates, err := template.New(host, db, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	s, err := sandbox.New(
		sandbox.Defaults(),
		sandbox.Deps{Store: db, Host: host, Templates: templates, Log: slog.New(slog.DiscardHandler)},
	)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkCreateDelete is what the control plane adds to the life of a machine.
func BenchmarkCreateDelete(b *testing.B) {
	s := benchService(b)
	for b.Loop() {
		box, err := s.Create(b.Context(), alice, api.CreateRequest{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Delete(b.Context(), alice, box.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate is what the control plane adds to a create.
func BenchmarkCreate(b *testing.B) {
	s := benchService(b)
	var all []api.SandboxID
	for b.Loop() {
		box, err := s.Create(b.Context(), alice, api.CreateRequest{Metadata: map[string]string{"a": "1"}})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, box.ID)
		if len(all) == 500 {
			b.StopTimer()
			for _, id := range all {
				if err := s.Delete(b.Context(), alice, id); err != nil {
					b.Fatal(err)
				}
			}
			all = nil
			b.StartTimer()
		}
	}
}

// BenchmarkGuest is what the control plane adds to every use of a sandbox.
func BenchmarkGuest(b *testing.B) {
	s := benchService(b)
	box, err := s.Create(b.Context(), alice, api.CreateRequest{})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Guest(b.Context(), alice, box.ID); err != nil {
			b.Fatal(err)
		}
	}
}
