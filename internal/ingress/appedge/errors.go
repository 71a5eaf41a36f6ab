package appedge

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// Seconds after which clients are to try again.
const (
	retrySoon   = 5
	retryRobot  = 300 // requests of robots and probes, which wake nothing
	retryBroken = 30
)

func unavailable(message string) *api.Error { return api.Errorf(api.Unavailable, "%s", message) }

func tooLarge(limit int64) *api.Error {
	return api.Errorf(api.TooLarge, "The body of the request is too large: send at most %d bytes", limit)
}

// statusOf returns the HTTP status of an error. What a server behind the edge failed to do has a status of its own.
func statusOf(err *api.Error) int {
	switch err.Code {
	case api.Timeout:
		return http.StatusGatewayTimeout
	case api.Unreachable:
		return http.StatusBadGateway
	default:
		return err.Code.Info().Status
	}
}

// waitError returns the error for a client whose request got no replica, and sets Retry-After.
//
// What is wrong with an app is for its workspace, and not for those who visit it.
func (e *Edge) waitError(w http.ResponseWriter, a *app, err error) *api.Error {
	retry := retrySoon
	out := unavailable("The app could not be started")
	limited, isLimited := errors.AsType[*limitError](err)
	switch {
	case isLimited:
		retry = max(1, int((limited.retry + time.Second - 1).Seconds()))
	case errors.Is(err, errAsleep):
		retry = retryRobot
		out = unavailable("The app sleeps, and requests of robots and probes do not wake it")
	case errors.Is(err, errHeld):
		out = unavailable("The app is starting: try again in a moment")
	default:
		retry = retryBroken
		e.cfg.Log.Debug("a request got no replica", "app", a.id, "err", err)
	}
	w.Header().Set("Retry-After", strconv.Itoa(retry))
	return out
}

// programError returns the error for a client whose request a program did not answer. cause is that of the end of the
// request's context; nil: it has not ended.
func (e *Edge) programError(w http.ResponseWriter, rt Route, cause error, err *api.Error) *api.Error {
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return tooLarge(e.cfg.MaxBody)
	case errors.Is(cause, errSlow):
		return api.Errorf(api.Timeout, "The app did not begin its response within %s", e.cfg.Response)
	case errors.Is(cause, errReplaced):
		w.Header().Set("Retry-After", "1")
		return unavailable("The app was replaced by a later deployment: try again")
	case err.Code == api.RequestTimeout:
		return err
	case err.Code == api.Invalid, err.Code == api.NotAllowed:
		return api.Errorf(err.Code, "The request cannot be forwarded to an app")
	case errors.Is(err, guestapi.ErrBusy):
		w.Header().Set("Retry-After", "1")
		return unavailable("The app has too many connections")
	case errors.Is(err, guestapi.ErrRefused), errors.Is(err, guestapi.ErrNotFound):
		w.Header().Set("Retry-After", strconv.Itoa(retrySoon))
		return api.Errorf(api.Unreachable, "The app does not accept connections on port %d", rt.Port)
	default:
		e.cfg.Log.Debug("request was not answered by an app", "app", rt.App, "err", err)
		return api.Errorf(api.Unreachable, "The app did not answer")
	}
}

// refuse sends an error as JSON, or as a page to a client that accepts one.
func refuse(w http.ResponseWriter, r *http.Request, status int, err *api.Error) {
	err.RequestID = api.NewRequestID()
	h := w.Header()
	h.Set("X-Request-Id", string(err.RequestID))
	if proxy.WantsPage(r) {
		proxy.WritePage(w, status, err.Message, string(err.RequestID))
		return
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(err) // the client may have closed the connection
}
