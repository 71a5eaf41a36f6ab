package httpapi

import (
	"errors"
	"io"
	"net/http"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/execstream"
	"github.com/pandastack/pandastack/internal/ingress/httpapi/strictjson"
)

// maxBody bounds a JSON body in bytes. Files are not bounded by it.
const maxBody = 8 << 20

// bodyCost is how much memory a byte of a JSON body takes while it is decoded and used.
const bodyCost = 6

// decode reads a JSON body into v, a pointer to a struct, and validates it. An empty body is {}.
func (rq *request) decode(v any) error {
	data, err := io.ReadAll(rq.memory.Reader(http.MaxBytesReader(rq.w, rq.r.Body, maxBody), bodyCost))
	if refused := execstream.UnpaidError(err, "body"); refused != nil {
		return refused
	}
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		return api.Errorf(api.TooLarge,
			"the body has more than %d bytes: send large data as a file with PUT fs", maxBody).
			With("limit_bytes", maxBody)
	}
	if slow, ok := errors.AsType[*api.Error](err); ok {
		return slow
	}
	if err != nil {
		return api.Wrap(api.Invalid, err, "the body broke off: "+err.Error())
	}
	if err := strictjson.Decode(data, v); err != nil {
		return err
	}
	if checked, ok := v.(interface{ Validate() error }); ok {
		return checked.Validate()
	}
	return nil
}
