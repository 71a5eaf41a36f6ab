package httpapi_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
)

// FuzzBody: what is taken is JSON of the request's own fields, what is not names why.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"cmd":"x","env":{"A":"b"}}`))
	f.Add([]byte(`{"volumes":[{"name":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{&api.ExecRequest{}, &api.CreateRequest{}, &api.ReplOnce{}} {
			err := httpapi.Strict(data, v)
			if err != nil && (api.CodeOf(err) != api.Invalid || err.Error() == "") {
				t.Errorf("%q: %v", data, err)
			}
			if err == nil && len(bytes.TrimSpace(data)) > 0 && !json.Valid(data) {
				t.Errorf("%q was taken", data)
			}
		}
	})
}
