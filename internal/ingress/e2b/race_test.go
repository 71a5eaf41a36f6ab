package e2b_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/httpapi"
)

// TestCommandAgainstChangeOfState deletes or pauses a sandbox while its guest has a request of either API. Both must
// answer as they do when the request comes afterwards.
func TestCommandAgainstChangeOfState(t *testing.T) {
	p := auth.Principal{Workspace: auth.DefaultWorkspace}
	for _, order := range []struct {
		name   string
		change func(w *fixture, id api.SandboxID) error
		err    error // of the guest; nil: of its channel
		status int
		code   api.Code
	}{
		{"delete", func(w *fixture, id api.SandboxID) error { return w.boxes.Delete(t.Context(), p, id) },
			nil, http.StatusNotFound, api.NotFound},
		{"pause", func(w *fixture, id api.SandboxID) error {
			_, err := w.boxes.Pause(t.Context(), p, id)
			return err
		}, guestapi.ErrBusy, http.StatusConflict, api.WrongState},
	} {
		for _, face := range []string{"v1", "agent"} {
			t.Run(order.name+" "+face, func(t *testing.T) {
				w := newFixture(t)
				begun, changed := make(chan struct{}, 1), make(chan struct{})
				w.host.SetGuestHook(func(ctx context.Context) error {
					select {
					case begun <- struct{}{}:
					default:
					}
					select {
					case <-changed:
						return order.err
					case <-ctx.Done(): // what the deletion asks the guest
						return context.Cause(ctx)
					}
				})
				c := w.create("/v2/sandboxes", `{"templateID":"base"}`)
				id, _, _ := strings.Cut(c.SandboxID, "-")
				v1 := w.serveV1()
				send := func() (int, string) { return w.sendCommand(face, v1, id, c.EnvdAccessToken) }
				type answer struct {
					status int
					body   string
				}
				during := make(chan answer, 1)
				go func() {
					status, body := send()
					during <- answer{status, body}
				}()
				<-begun
				if err := order.change(w, api.SandboxID(id)); err != nil {
					t.Fatal(err)
				}
				close(changed)
				got := <-during
				status, _ := send()
				want := order.status
				if face == "agent" {
					want = http.StatusBadGateway
				}
				if got.status != want || status != want {
					t.Errorf("status %d during the change and %d after it, want %d: %s",
						got.status, status, want, got.body)
				}
				if face == "v1" && (!strings.Contains(got.body, fmt.Sprintf(`"code":%q`, order.code)) ||
					!strings.Contains(got.body, `"retryable":false`)) {
					t.Errorf("during the change: %s, want the code %s", got.body, order.code)
				}
				if order.name == "delete" && face == "v1" && !strings.Contains(got.body, `"reason":"deleted"`) {
					t.Errorf("during the deletion: %s, want the tombstone", got.body)
				}
			})
		}
	}
}

// serveV1 serves the other API on the same sandboxes, and returns its address.
func (w *fixture) serveV1() string {
	w.t.Helper()
	s, err := httpapi.New(httpapi.Config{}, httpapi.Deps{Sandboxes: w.boxes, Templates: w.templates, Keys: w.keys,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	srv := httptest.NewServer(s)
	w.t.Cleanup(srv.Close)
	return srv.URL
}

// sendCommand sends a request that the guest serves, a command or a file, and returns the response.
func (w *fixture) sendCommand(face, v1, id, token string) (int, string) {
	url, body := v1+"/v1/sandboxes/"+id+"/exec", `{"cmd":"true"}`
	if face == "agent" {
		url, body = w.url+"/files?path=/tmp/f&username=user", "content"
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	if face == "agent" {
		req.Host = "49983-" + id + "." + domain
		req.Header.Set("X-Access-Token", token)
		req.Header.Set("Content-Type", "application/octet-stream")
	} else {
		req.Header.Set("Authorization", "Bearer "+w.key)
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}
