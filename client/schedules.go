package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pandastack/pandastack/api"
)

// Schedules are the calls on schedules.
type Schedules struct{ c *Client }

func schedulePath(id api.ScheduleID, below ...string) string {
	return apiPath(append([]string{"schedules", string(id)}, below...)...)
}

func (s *Schedules) call(ctx context.Context, rq call) (api.Schedule, error) {
	var out api.Schedule
	err := s.c.do(ctx, rq, &out)
	return out, err
}

// Create adds a schedule.
func (s *Schedules) Create(ctx context.Context, req api.CreateScheduleRequest) (api.Schedule, error) {
	return s.call(ctx, post(apiPath("schedules"), req))
}

// List returns all schedules by name.
func (s *Schedules) List(ctx context.Context) ([]api.Schedule, error) {
	var out []api.Schedule
	err := s.c.do(ctx, get(apiPath("schedules")), &out)
	return out, err
}

// Get returns a schedule.
func (s *Schedules) Get(ctx context.Context, id api.ScheduleID) (api.Schedule, error) {
	return s.call(ctx, get(schedulePath(id)))
}

// Update changes a schedule.
func (s *Schedules) Update(
	ctx context.Context,
	id api.ScheduleID,
	req api.UpdateScheduleRequest,
) (api.Schedule, error) {
	return s.call(ctx, call{method: http.MethodPatch, path: schedulePath(id), in: req})
}

// Delete deletes a schedule and its runs.
func (s *Schedules) Delete(ctx context.Context, id api.ScheduleID) error {
	rq := del(schedulePath(id))
	rq.idempotent = false // a second response would be not_found
	return s.c.do(ctx, rq, nil)
}

// Trigger runs a schedule now. The run is queued when Trigger returns.
func (s *Schedules) Trigger(ctx context.Context, id api.ScheduleID) (api.ScheduleRun, error) {
	var out api.ScheduleRun
	err := s.c.do(ctx, post(schedulePath(id, "trigger"), nil), &out)
	return out, err
}

// Runs returns up to limit of the last runs of a schedule, newest first.
func (s *Schedules) Runs(ctx context.Context, id api.ScheduleID, limit int) ([]api.ScheduleRun, error) {
	var out []api.ScheduleRun
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	rq := get(schedulePath(id, "runs"))
	rq.query = query
	err := s.c.do(ctx, rq, &out)
	return out, err
}
