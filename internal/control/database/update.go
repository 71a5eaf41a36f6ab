package database

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/store"
)

// Update changes what the request names. A database that becomes always on is woken.
func (s *Service) Update(
	ctx context.Context,
	p auth.Principal,
	id api.DatabaseID,
	req api.UpdateDatabaseRequest,
) (api.Database, error) {
	if err := req.Validate(); err != nil {
		return api.Database{}, err
	}
	row, ctx, release, err := s.lock(ctx, p, id)
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	defer release()
	if err := ready(&row); err != nil {
		return api.Database{}, err
	}
	if req.Durability != nil && *req.Durability == api.DurabilitySync && s.backups == nil {
		return api.Database{}, errNoSync()
	}
	was := row.Durability
	if err := change(&row, req); err != nil {
		return api.Database{}, api.AsError(err)
	}
	err = s.db.Write(ctx, "database update", func(ctx context.Context, tx *store.Tx) error {
		return tx.UpdateDatabase(ctx, &row, store.DatabaseReady, "label", "always_on", "idle_seconds",
			"storage_max_mib", "networks", "expires", "durability", "replicas", "changed")
	})
	if err != nil {
		return api.Database{}, api.AsError(err)
	}
	s.poke() // for its replicas
	if req.AlwaysOn != nil && *req.AlwaysOn {
		if _, err := s.runLocked(ctx, &row); err != nil {
			return api.Database{}, api.AsError(err)
		}
	}
	if row.Durability != was && s.backups != nil && s.runs(ctx, &row) {
		s.of(id).setBackedUp(false) // if this fails, Run does it
		if err := s.beginBackups(ctx, &row, nil); err != nil {
			return api.Database{}, api.AsError(err)
		}
	}
	return s.show(ctx, &row)
}

func change(row *store.Database, req api.UpdateDatabaseRequest) (err error) {
	if req.Replicas != nil {
		row.Replicas = *req.Replicas
	}
	if req.Durability != nil {
		row.Durability = string(*req.Durability)
	}
	if req.Label != nil {
		row.Label = *req.Label
	}
	if req.AlwaysOn != nil {
		row.AlwaysOn = *req.AlwaysOn
	}
	if req.IdleSeconds != nil {
		row.IdleSeconds = *req.IdleSeconds
	}
	if req.StorageMaxMB != nil {
		row.StorageMaxMiB = int64(*req.StorageMaxMB)
	}
	if req.Networks != nil {
		if row.Networks, err = encode(*req.Networks); err != nil {
			return err
		}
	}
	if req.TTLSeconds != nil {
		row.Expires = expiry(*req.TTLSeconds)
	}
	row.Changed = store.Micros(time.Now())
	return nil
}
