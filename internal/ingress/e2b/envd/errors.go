package envd

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
)

// errorStatuses maps each error of a guest to the code of the RPC protocol and the status of plain HTTP.
var errorStatuses = []struct {
	err    error
	code   connect.Code
	status int
}{
	{guestapi.ErrInvalid, connect.CodeInvalidArgument, http.StatusBadRequest},
	{guestapi.ErrNotFound, connect.CodeNotFound, http.StatusNotFound},
	{guestapi.ErrExists, connect.CodeAlreadyExists, http.StatusConflict},
	{guestapi.ErrPermission, connect.CodePermissionDenied, http.StatusForbidden},
	{guestapi.ErrNotDir, connect.CodeInvalidArgument, http.StatusBadRequest},
	{guestapi.ErrIsDir, connect.CodeInvalidArgument, http.StatusBadRequest},
	{guestapi.ErrNoSpace, connect.CodeResourceExhausted, http.StatusInsufficientStorage},
	{guestapi.ErrBusy, connect.CodeResourceExhausted, http.StatusTooManyRequests},
	{guestapi.ErrTooLarge, connect.CodeResourceExhausted, http.StatusRequestEntityTooLarge},
	{guestapi.ErrRefused, connect.CodeUnavailable, http.StatusBadGateway},
	{guestapi.ErrLost, connect.CodeUnavailable, http.StatusBadGateway},
	{context.DeadlineExceeded, connect.CodeDeadlineExceeded, http.StatusGatewayTimeout},
	{context.Canceled, connect.CodeCanceled, http.StatusRequestTimeout},
}

// isGone reports whether an error says that the sandbox of a guest does not run any more. It is answered as a request
// for such a sandbox is.
func isGone(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && (e.Code == api.NotFound || e.Code == api.WrongState || e.Code == api.Unavailable)
}

func rpcError(err error) error {
	if err == nil {
		return nil
	}
	if isGone(err) {
		return connect.NewError(connect.CodeUnavailable, err)
	}
	for _, a := range errorStatuses {
		if errors.Is(err, a.err) {
			return connect.NewError(a.code, err)
		}
	}
	return connect.NewError(connect.CodeInternal, err)
}

// streamError returns the error of a stream that has begun.
//
// If the sandbox has ended or sleeps, it cuts the connection instead: clients then ask whether the sandbox is there,
// and say that it was killed. An orderly end would look as if the service had failed.
func streamError(err error) error {
	if isGone(err) || errors.Is(err, guestapi.ErrLost) {
		panic(http.ErrAbortHandler)
	}
	return rpcError(err)
}

func failWith(w http.ResponseWriter, err error) {
	if isGone(err) {
		fail(w, http.StatusBadGateway, err.Error())
		return
	}
	for _, a := range errorStatuses {
		if errors.Is(err, a.err) {
			fail(w, a.status, err.Error())
			return
		}
	}
	fail(w, http.StatusInternalServerError, err.Error())
}

// budgetError returns the error of a request that exceeds a budget.
func budgetError(err error) error { return connect.NewError(connect.CodeResourceExhausted, err) }
