// Package scheduleapi are the calls on schedules as the API offers them.
//
// It checks ids and hides secrets from callers that may not run commands; the service does the rest. It must not know
// routes or how bodies are decoded.
package scheduleapi

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
)

// Schedules are the methods of *schedule.Service that this API uses.
type Schedules interface {
	Create(ctx context.Context, p auth.Principal, req api.CreateScheduleRequest) (api.Schedule, error)
	List(ctx context.Context, p auth.Principal) ([]api.Schedule, error)
	Get(ctx context.Context, p auth.Principal, id api.ScheduleID) (api.Schedule, error)
	Update(
		ctx context.Context,
		p auth.Principal,
		id api.ScheduleID,
		req api.UpdateScheduleRequest,
	) (api.Schedule, error)
	Delete(ctx context.Context, p auth.Principal, id api.ScheduleID) error
	Trigger(ctx context.Context, p auth.Principal, id api.ScheduleID) (api.ScheduleRun, error)
	Runs(ctx context.Context, p auth.Principal, id api.ScheduleID, limit int) ([]api.ScheduleRun, error)
}

// Caller is a caller and the schedule of its call, whose id is as in the path.
type Caller struct {
	Principal auth.Principal
	Schedule  string
}

// API has the service; without one schedules are unsupported.
type API struct{ Schedules Schedules }

func errNoSchedules() error { return api.Errorf(api.Unsupported, "this server has no schedules") }

// on returns the service and the id of a caller.
func (a API) on(c Caller) (Schedules, api.ScheduleID, error) {
	if a.Schedules == nil {
		return nil, "", errNoSchedules()
	}
	id, err := api.ParseScheduleID(c.Schedule)
	return a.Schedules, id, err
}

// shown returns a schedule as a caller may see it: one that may not run commands does not get its secret.
func shown(c Caller, out api.Schedule, err error) (api.Schedule, error) {
	if !c.Principal.Scopes.Has(api.ScopeExec) {
		out.Secret = ""
	}
	return out, err
}

// Create adds a schedule.
func (a API) Create(ctx context.Context, c Caller, req api.CreateScheduleRequest) (api.Schedule, error) {
	if a.Schedules == nil {
		return api.Schedule{}, errNoSchedules()
	}
	out, err := a.Schedules.Create(ctx, c.Principal, req)
	return shown(c, out, err)
}

// List returns all schedules without their secrets.
func (a API) List(ctx context.Context, c Caller) ([]api.Schedule, error) {
	if a.Schedules == nil {
		return nil, errNoSchedules()
	}
	all, err := a.Schedules.List(ctx, c.Principal)
	for i := range all {
		all[i].Secret = ""
	}
	return all, err
}

// Get returns the schedule of a caller.
func (a API) Get(ctx context.Context, c Caller) (api.Schedule, error) {
	s, id, err := a.on(c)
	if err != nil {
		return api.Schedule{}, err
	}
	out, err := s.Get(ctx, c.Principal, id)
	return shown(c, out, err)
}

// Update changes the schedule of a caller.
func (a API) Update(ctx context.Context, c Caller, req api.UpdateScheduleRequest) (api.Schedule, error) {
	s, id, err := a.on(c)
	if err != nil {
		return api.Schedule{}, err
	}
	out, err := s.Update(ctx, c.Principal, id, req)
	return shown(c, out, err)
}

// Delete deletes the schedule of a caller.
func (a API) Delete(ctx context.Context, c Caller) error {
	s, id, err := a.on(c)
	if err != nil {
		return err
	}
	return s.Delete(ctx, c.Principal, id)
}

// Trigger runs the schedule of a caller now.
func (a API) Trigger(ctx context.Context, c Caller) (api.ScheduleRun, error) {
	s, id, err := a.on(c)
	if err != nil {
		return api.ScheduleRun{}, err
	}
	return s.Trigger(ctx, c.Principal, id)
}

// Runs returns up to limit of the last runs of the schedule of a caller, newest first.
func (a API) Runs(ctx context.Context, c Caller, limit int) ([]api.ScheduleRun, error) {
	s, id, err := a.on(c)
	if err != nil {
		return nil, err
	}
	return s.Runs(ctx, c.Principal, id, limit)
}
