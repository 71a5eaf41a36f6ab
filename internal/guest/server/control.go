package server

import (
	"context"
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

func (r *request) freeze(ctx context.Context) error {
	sync, err := guestapi.ParseFreeze(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	s := r.h.s
	s.mu.Lock()
	s.frozen, s.frozenHere = true, true
	s.mu.Unlock()
	if err := s.backend.Freeze(ctx, sync); err != nil {
		s.mu.Lock()
		s.frozen = false
		s.openGate(nil)
		s.mu.Unlock()
		return err
	}
	return r.st.SendLast(ctx, guestapi.AppendStatus(nil, nil))
}

// confirm records the result of a Thaw or Restore, and releases the requests that wait for it.
func (r *request) confirm(err error) {
	s := r.h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.session != s.session {
		return // the host that asked has disconnected, and another has connected
	}
	if err == nil {
		s.frozen, s.frozenHere = false, false
		if r.op == guestapi.OpRestore {
			s.unrestored, s.restoreFailed, s.generation = false, false, s.greeted
		}
	}
	s.openGate(err)
}

func (r *request) thaw(ctx context.Context) error {
	r.h.g.Release()
	if err := r.h.s.backend.Thaw(ctx); err != nil {
		return err
	}
	return r.reply(ctx, nil)
}

func (r *request) restore(ctx context.Context) error {
	id, err := guestapi.ParseIdentity(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	r.h.g.Release()
	if err := r.h.s.backend.Restore(ctx, id); err != nil {
		return err
	}
	return r.reply(ctx, nil)
}

func (r *request) stats(ctx context.Context) error {
	stats, err := r.h.s.backend.Stats(ctx)
	if err != nil {
		return err
	}
	return r.reply(ctx, guestapi.AppendStats(nil, &stats))
}

func (r *request) volume(ctx context.Context) error {
	req, err := guestapi.ParseVolumeRequest(r.body)
	if err != nil {
		return fmt.Errorf("%w: %w", guestapi.ErrInvalid, err)
	}
	report, err := r.h.s.backend.Volume(ctx, req)
	if err != nil {
		return err
	}
	return r.reply(ctx, guestapi.AppendVolumeReport(nil, &report))
}
