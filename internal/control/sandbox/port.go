package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

// maxPorts limits the declared ports of one sandbox.
const maxPorts = 256

// Ports lists the declared ports and, while the sandbox runs, those that programs listen on. It wakes nothing
// and does not count as use.
func (s *Service) Ports(ctx context.Context, p auth.Principal, id api.SandboxID) (_ []api.Port, err error) {
	defer s.finishVerb("ports", time.Now(), &err)
	r, err := s.find(ctx, p, id)
	if err != nil {
		return nil, err
	}
	return s.viewPorts(ctx, &r)
}

func proxyURL(id api.SandboxID, port int) string {
	return "/v1/sandboxes/" + string(id) + "/proxy/" + strconv.Itoa(port) + "/"
}

// DeclarePort gives a port a label. Declaring a port again changes its label.
func (s *Service) DeclarePort(
	ctx context.Context,
	p auth.Principal,
	id api.SandboxID,
	req api.PortRequest,
) (_ api.Port, err error) {
	defer s.finishVerb("declare port", time.Now(), &err)
	if err := req.Validate(); err != nil {
		return api.Port{}, err
	}
	r, err := s.findOwn(ctx, p, id)
	if err != nil {
		return api.Port{}, err
	}
	row := &store.Port{Sandbox: string(r.ID), Port: req.Port, Label: req.Label, Created: store.Micros(time.Now())}
	err = s.db.Write(ctx, "port", func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.Sandbox(ctx, string(r.ID)); err != nil { // it may have ended since
			return err
		}
		known, err := tx.Ports(ctx, string(r.ID))
		if err != nil {
			return err
		}
		if len(known) >= maxPorts {
			return api.Errorf(api.QuotaExceeded, "sandbox %s has %d declared ports: remove some first", id, len(known))
		}
		return tx.PutPort(ctx, row)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Port{}, s.endedError(ctx, p, id)
	}
	if err != nil {
		return api.Port{}, err
	}
	all, err := s.viewPorts(ctx, &r)
	if err != nil {
		return api.Port{}, err
	}
	for _, port := range all {
		if port.Port == req.Port {
			return port, nil
		}
	}
	return api.Port{}, s.endedError(ctx, p, id)
}

// RemovePort removes a declaration; not_found if the port was not declared.
func (s *Service) RemovePort(ctx context.Context, p auth.Principal, id api.SandboxID, port int) (err error) {
	defer s.finishVerb("remove port", time.Now(), &err)
	if _, err := s.findOwn(ctx, p, id); err != nil {
		return err
	}
	err = s.db.Write(ctx, "port", func(ctx context.Context, tx *store.Tx) error {
		return tx.DeletePort(ctx, string(id), port)
	})
	if errors.Is(err, store.ErrNotFound) {
		return api.Errorf(api.NotFound, "port %d of sandbox %s was not declared", port, id)
	}
	return err
}

// viewPorts merges the declared ports with those that programs listen on, by number.
func (s *Service) viewPorts(ctx context.Context, r *record) ([]api.Port, error) {
	rows, err := s.db.Read().Ports(ctx, string(r.ID))
	if err != nil {
		return nil, err
	}
	all := map[int]api.Port{}
	for _, row := range rows {
		all[row.Port] = api.Port{
			Port:     row.Port,
			Label:    row.Label,
			Source:   api.PortUser,
			ProxyURL: proxyURL(r.ID, row.Port),
		}
	}
	for _, found := range s.listening(ctx, r) {
		n := int(found.Port)
		port, ok := all[n]
		if !ok {
			port = api.Port{Port: n, Source: api.PortDetected, ProxyURL: proxyURL(r.ID, n)}
		}
		port.Listening = true
		if port.Program == "" {
			port.Program = activity.Printable([]byte(found.Program))
		}
		all[n] = port
	}
	out := make([]api.Port, 0, len(all))
	for _, n := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[n])
	}
	return out, nil
}

// listening asks a running guest for its ports. It returns nothing if the guest does not reply soon.
func (s *Service) listening(ctx context.Context, r *record) []guestapi.Port {
	if r.State != api.Running {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, errGuestSilent)
	defer cancel()
	g, err := s.guests.Guest(ctx, r.machineID())
	if err != nil {
		return nil
	}
	found, err := g.Ports(ctx)
	if err != nil {
		return nil
	}
	return found
}
