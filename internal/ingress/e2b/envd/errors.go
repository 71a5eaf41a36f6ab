package envd

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"

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

func rpcError(err error) error {
	if err == nil {
		return nil
	}
	for _, a := range errorStatuses {
		if errors.Is(err, a.err) {
			return connect.NewError(a.code, err)
		}
	}
	return connect.NewError(connect.CodeInternal, err)
}

func failWith(w http.ResponseWriter, err error) {
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
