package e2b_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/control/auth"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/ingress/e2b"
)

// TestBusyNodeRefusesRequestsOfAgents checks what clients of an agent get while the node serves as much as it can: of
// files and of calls.
func TestBusyNodeRefusesRequestsOfAgents(t *testing.T) {
	w := newFixture(t, func(c *e2b.Config, keys *auth.Keys) {
		c.Guard = access.New(access.Config{Door: access.NewDoor(access.DoorConfig{
			Hold: time.Hour, Places: map[access.Class]int{access.Work: 1},
		})}, keys, nil)
	})
	begun, end := make(chan struct{}), make(chan struct{})
	var first sync.Once
	w.host.SetGuestHook(func(context.Context) error {
		first.Do(func() {
			close(begun)
			<-end
		})
		return nil
	})
	c := w.create("/v2/sandboxes", `{"templateID":"base"}`)
	id, _, _ := strings.Cut(c.SandboxID, "-")
	served := make(chan int, 1)
	go func() {
		status, _ := w.sendCommand("agent", "", id, c.EnvdAccessToken)
		served <- status
	}()
	<-begun
	for _, path := range []string{"/files?path=/tmp/f", "/process.Process/List"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+path, strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "49983-" + id + "." + domain
		req.Header.Set("X-Access-Token", c.EnvdAccessToken)
		req.Header.Set("Content-Type", "application/json")
		status, body, header := w.do(req)
		if status != http.StatusTooManyRequests || header.Get("Retry-After") == "" ||
			!strings.Contains(body, "the node is busy") {
			t.Errorf("%s on a busy node: %d %s, %v; want 429 with Retry-After", path, status, body, header)
		}
	}
	close(end)
	if status := <-served; status != http.StatusOK {
		t.Errorf("the request that was served: status %d", status)
	}
}
