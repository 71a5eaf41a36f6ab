package httpapi_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
)

// FuzzBody checks that accepted bodies are JSON with the request's own fields, and that every refusal says why.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"cmd":"x","env":{"A":"b"}}`))
	f.Add([]byte(`{"volumes":[{"name":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, v := range []any{&api.ExecRequest{}, &api.CreateRequest{}, &api.ReplOnce{}} {
			err := httpapi.Strict(data, v)
			if err != nil && (api.CodeOf(err) != api.Invalid || err.Error() == "") {
				t.Errorf("decode of %q = %v, want the code invalid and a message", data, err)
			}
			if err == nil && len(bytes.TrimSpace(data)) > 0 && !json.Valid(data) {
				t.Errorf("decode accepted %q, which is not JSON", data)
			}
		}
	})
}
