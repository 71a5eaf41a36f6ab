package httpapi

import (
	"context"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/scheduleapi"
)

const (
	schedulesPath = "/v1/schedules"
	schedulePath  = schedulesPath + "/{schedule}"
)

func scheduleRoutes() []route {
	return tagged("schedules",
		post(schedulesPath, "Create a schedule: a command or a request at the moments of a cron expression",
			jsonInOut(201, createSchedule)),
		get(schedulesPath, "List schedules by name", jsonOut(200, onSchedule(scheduleapi.API.List))),
		get(schedulePath, "Get a schedule with its next moments", jsonOut(200, onSchedule(scheduleapi.API.Get))),
		patch(schedulePath, "Change it, pause it or let it go on; absent fields stay", jsonInOut(200, updateSchedule)),
		del(schedulePath, "Delete a schedule and its runs; runs that have not ended are canceled",
			noContent(deleteSchedule)),
		post(schedulePath+"/trigger", "Run it now", jsonOut(202, onSchedule(scheduleapi.API.Trigger))),
		get(schedulePath+"/runs", "List its last runs, newest first", jsonOut(200, listRuns),
			param{"limit", "integer", "At most so many, 1 to 1000; 100 if absent."}),
	)
}

// schedule returns the caller of the API of schedules, for the schedule in the path.
func (rq *request) schedule() scheduleapi.Caller {
	return scheduleapi.Caller{Principal: rq.p, Schedule: rq.r.PathValue("schedule")}
}

// onSchedule is a handler that makes a call without a body.
func onSchedule[Out any](
	do func(scheduleapi.API, context.Context, scheduleapi.Caller) (Out, error),
) func(*request) (Out, error) {
	return func(rq *request) (Out, error) { return do(rq.s.deps.Schedules, rq.r.Context(), rq.schedule()) }
}

func createSchedule(rq *request, req api.CreateScheduleRequest) (api.Schedule, error) {
	c, err := rq.s.deps.Schedules.Create(rq.r.Context(), rq.schedule(), req)
	rq.target = string(c.ID)
	return c, err
}

func updateSchedule(rq *request, req api.UpdateScheduleRequest) (api.Schedule, error) {
	return rq.s.deps.Schedules.Update(rq.r.Context(), rq.schedule(), req)
}

func deleteSchedule(rq *request) error {
	return rq.s.deps.Schedules.Delete(rq.r.Context(), rq.schedule())
}

func listRuns(rq *request) ([]api.ScheduleRun, error) {
	limit, err := rq.intParam("limit", 1, 1000, 100)
	if err != nil {
		return nil, err
	}
	return rq.s.deps.Schedules.Runs(rq.r.Context(), rq.schedule(), int(limit))
}
