package sandbox

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/sandbox/activity"
	"github.com/pandastack/pandastack/internal/control/store"
)

func itoa(n int) string { return strconv.Itoa(n) }

// viewPorts merges what was declared with what listens, by number.
func (s *Service) viewPorts(ctx context.Context, r *store.Sandbox) ([]api.Port, error) {
	rows, err := s.db.Read().Ports(ctx, r.ID)
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

// listening asks a running guest for its ports; nothing if it does not answer soon.
func (s *Service) listening(ctx context.Context, r *store.Sandbox) []guestapi.Port {
	if api.Status(r.State) != api.Running {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, errors.New("the guest did not answer in time"))
	defer cancel()
	g, err := s.host.Guest(ctx, machineID(r))
	if err != nil {
		return nil
	}
	found, err := g.Ports(ctx)
	if err != nil {
		return nil
	}
	return found
}
