package httpapi_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/httpapi"
)

var previewKey = bytes.Repeat([]byte("k"), 32)

func TestPreviewTokens(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	box := api.NewSandboxID()
	token := httpapi.Sign(previewKey, box, 3000, now.Add(time.Minute), "ours", []string{"/a", "/b/"})
	for _, tt := range []struct {
		name    string
		key     []byte
		token   string
		now     time.Time
		path    string
		code    api.Code
		allowed bool
	}{
		{"good", previewKey, token, now, "/a/x", "", true},
		{"prefix-itself", previewKey, token, now, "/b", "", true},
		{"other-path", previewKey, token, now, "/ab", "", false},
		{"climbing", previewKey, token, now, "/a/../c", "", false},
		{"expired", previewKey, token, now.Add(2 * time.Minute), "/a", api.Gone, false},
		{"other-key", bytes.Repeat([]byte("x"), 32), token, now, "/a", api.Unauthenticated, false},
		{"no-key", nil, token, now, "/a", api.Unauthenticated, false},
		{"changed", previewKey, "A" + token[1:], now, "/a", api.Unauthenticated, false},
		{"cut", previewKey, strings.Split(token, ".")[0], now, "/a", api.Unauthenticated, false},
		{"everything", previewKey, httpapi.Sign(previewKey, box, 3000, now, "ours", nil), now, "/any", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, port, allowed, err := httpapi.Open(tt.key, tt.token, tt.now, tt.path)
			if api.CodeOf(err) != tt.code || allowed != tt.allowed || err == nil && (got != box || port != 3000) {
				t.Errorf("%s %d %v %v, want code %q and %v", got, port, allowed, err, tt.code, tt.allowed)
			}
		})
	}
}

// FuzzPreview: nothing that was not signed opens.
func FuzzPreview(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	good := httpapi.Sign(previewKey, "sbxaaaaaaaaaaaaaaaaaaaa", 80, now, "ours", nil)
	f.Add("x.y")
	f.Add(good[:len(good)-1])
	f.Fuzz(func(t *testing.T, token string) {
		if _, _, _, err := httpapi.Open(previewKey, token, now, "/"); err == nil && token != good {
			t.Errorf("%q opened", token)
		}
	})
}

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
