package app

import (
	"context"
	"errors"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/app/program"
	"github.com/pandastack/pandastack/internal/control/store"
)

// rehearse lets the program of a replica do before its capture what every program of the capture does first: it
// continues after a restore, and responds to requests. A monitor that translates code has then translated that already.
func (s *Service) rehearse(ctx context.Context, w *work, r *store.Replica) error {
	if !s.cfg.Rehearse {
		return nil
	}
	if err := s.step(ctx, w, stepWarm); err != nil {
		return err
	}
	id := api.SandboxID(r.Sandbox)
	if _, err := s.boxes.Hibernate(ctx, as(w.row), id); err != nil {
		return err
	}
	box, err := s.boxes.Wake(ctx, as(w.row), id)
	if err != nil {
		return err
	}
	if box.BootMode == bootCold {
		return errors.New("the machine was booted, not restored: the program does not run")
	}
	if err := s.welcome(ctx, w.row, &w.made, r); err != nil {
		return err
	}
	g, _, err := s.boxes.GuestAndSandbox(ctx, as(w.row), id)
	if err != nil {
		return err
	}
	return program.Rehearse(ctx, g, w.made.port(), w.made.set.Warm, w.made.set.Health.Path)
}
