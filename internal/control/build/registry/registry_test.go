package registry_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/build/registry"
)

// TestCredentialsGoToTheirServer resolves an image of a registry that asks for a password.
func TestCredentialsGoToTheirServer(t *testing.T) {
	var shown atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			shown.Add(1)
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	r, err := registry.New(registry.Config{Dir: t.TempDir(), Insecure: []string{host}, Wait: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if server, err := r.Server(host + "/app:1"); server != host || err != nil {
		t.Errorf("Server: got %q, %v; want %s", server, err, host)
	}
	if server, err := r.Server("node:22"); server != "index.docker.io" || err != nil {
		t.Errorf("Server of a short reference: got %q, %v; want index.docker.io", server, err)
	}
	for server, want := range map[string]bool{
		"": false, "other.test": false, host: true, "http://" + host + "/v2/": true,
	} {
		before := shown.Load()
		_, err := r.Find(t.Context(), host+"/app:1", &api.RegistryAuth{Server: server, Username: "u", Password: "p"})
		if api.CodeOf(err) != api.Forbidden {
			t.Errorf("server %q: got %v, want forbidden", server, err)
		}
		if got := shown.Load() > before; got != want {
			t.Errorf("server %q: credentials shown: %v, want %v", server, got, want)
		}
	}
}
