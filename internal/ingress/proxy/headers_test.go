package proxy_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/proxy"
)

// TestLimitHeaders checks that requests with too long headers are refused in the form of the other errors of their
// host.
func TestLimitHeaders(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	ask := func(host, accept string, size int) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", nil)
		r.Header.Set("Accept", accept)
		for i := range size / 1024 {
			r.Header.Add("Cookie", strings.Repeat("x", 1000+i%2))
		}
		w := httptest.NewRecorder()
		proxy.LimitHeaders(ok).ServeHTTP(w, r)
		return w
	}
	if w := ask("api.test", "", proxy.MaxHeader-2048); w.Code != http.StatusNoContent {
		t.Errorf("below the bound: got %d %s", w.Code, w.Body)
	}
	w := ask("api.test", "", 2*proxy.MaxHeader)
	var e api.Error
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code != 431 || e.Code != api.TooLarge ||
		e.Message == "" || string(e.RequestID) != w.Header().Get("X-Request-Id") {
		t.Errorf("API: got %d %s, %v; want the form of its errors", w.Code, w.Body, err)
	}
	w = ask("3000-sbxa.test", "", 2*proxy.MaxHeader)
	if text := w.Body.String(); w.Code != 431 || !strings.Contains(text, `"code":431`) ||
		!strings.Contains(text, `"error_code":"too_large"`) {
		t.Errorf("port: got %d %s, want the form of its errors", w.Code, w.Body)
	}
	w = ask("api.test", "text/html", 2*proxy.MaxHeader)
	if w.Code != 431 || !strings.Contains(w.Body.String(), "<h1>") {
		t.Errorf("browser: got %d %s, want a page", w.Code, w.Body)
	}
}
