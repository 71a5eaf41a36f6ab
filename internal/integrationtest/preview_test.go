package integrationtest_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// TestPreviews makes previews of a private port and revokes them: through the whole platform, to the error of a port
// on which nothing listens.
func TestPreviews(t *testing.T) {
	w := integrationtest.New(t)
	boxes := w.Client.Sandboxes
	box, err := boxes.Create(t.Context(), api.CreateRequest{Network: &api.Network{PrivatePorts: true}})
	if err != nil {
		t.Fatal(err)
	}
	newPreview := func() api.Preview {
		t.Helper()
		p, err := boxes.Preview(t.Context(), box.ID, api.PreviewRequest{Port: 4444})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// visit follows a preview address of the API without a key, and returns the status at its end.
	visit := func(p api.Preview) int {
		t.Helper()
		u, err := url.Parse(p.URL)
		if err != nil {
			t.Fatal(err)
		}
		for {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.URL+u.RequestURI(), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = u.Host
			res, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close() // only the status matters
			if res.Header.Get("Location") == "" {
				return res.StatusCode
			}
			if u, err = url.Parse(res.Header.Get("Location")); err != nil {
				t.Fatal(err)
			}
		}
	}
	one, two := newPreview(), newPreview()
	if !strings.Contains(one.HostURL, "4444-"+string(box.ID)+".localhost:") {
		t.Errorf("the host name of the preview is %s", one.HostURL)
	}
	for _, p := range []api.Preview{one, two} {
		if status := visit(p); status != http.StatusBadGateway {
			t.Errorf("visit: got %d, want 502 from behind the check", status)
		}
	}
	if err := boxes.RevokePreview(t.Context(), box.ID, one.ID); err != nil {
		t.Fatal(err)
	}
	if status := visit(one); status != http.StatusGone {
		t.Errorf("visit of a revoked preview: got %d, want 410", status)
	}
	direct := one
	direct.URL = one.HostURL
	if status := visit(direct); status != http.StatusForbidden {
		t.Errorf("visit of a revoked preview by its host name: got %d, want 403", status)
	}
	list, err := boxes.Previews(t.Context(), box.ID)
	if err != nil || len(list) != 2 || list[0].ID != two.ID || list[1].RevokedAt == nil {
		t.Errorf("previews are %+v, %v", list, err)
	}
	if err := boxes.RevokePreviews(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	if status := visit(two); status != http.StatusGone {
		t.Errorf("visit after all were revoked: got %d, want 410", status)
	}
}
