package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/control/sandbox"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
)

func events(rq *request) error {
	n, err := rq.intParam("tail", 0, 100_000, 0)
	if err != nil {
		return err
	}
	q := sandbox.EventQuery{Tail: int(n)}
	if last := rq.r.Header.Get("Last-Event-ID"); last != "" {
		if q.After, err = strconv.ParseInt(last, 10, 64); err != nil || q.After < 0 {
			return api.Errorf(
				api.Invalid,
				"Last-Event-ID: %q is not an id of this stream: leave it out to start over",
				truncate(last),
			)
		}
	}
	if rq.boolParam("follow") || strings.Contains(rq.r.Header.Get("Accept"), "text/event-stream") {
		return followEvents(rq, q)
	}
	list, err := onSandboxWith(rq, q, rq.s.deps.Sandboxes.Events)
	if err != nil {
		return err
	}
	out := api.EventList{Events: make([]api.Event, 0, len(list))}
	for _, e := range list {
		out.Events = append(out.Events, e.Event)
	}
	writeJSON(rq.w, http.StatusOK, out)
	return nil
}

func followEvents(rq *request, q sandbox.EventQuery) error {
	// Access to the sandbox is checked before the stream begins, so that a refusal is an HTTP error.
	if _, err := onSandboxWith(rq, sandbox.EventQuery{Tail: 1}, rq.s.deps.Sandboxes.Events); err != nil {
		return err
	}
	out := execstream.NewSSE(rq.w)
	defer out.Close()
	gone := errors.New("client has gone")
	_, err := onSandbox(rq, func(ctx context.Context, p auth.Principal, id api.SandboxID) (struct{}, error) {
		return struct{}{}, rq.s.deps.Sandboxes.FollowEvents(ctx, p, id, q, func(e sandbox.Event) error {
			if out.ID(strconv.FormatInt(e.Seq, 10), "event", e.Event) != nil {
				return gone
			}
			return nil
		})
	})
	if err != nil && !errors.Is(err, gone) && rq.r.Context().Err() == nil {
		_ = out.Event("error", api.AsError(err)) // the client may have disconnected
	}
	return nil
}
