package integrationtest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/ingress/access"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// TestCreateAndDeleteUnderLoad has 200 clients run commands that do not end. Sandboxes can be made and deleted
// meanwhile through both APIs, and what finds the queue of commands full is refused at once.
func TestCreateAndDeleteUnderLoad(t *testing.T) {
	const clients, places, queue = 200, 4, 16
	w := integrationtest.New(t)
	w.Door = access.NewDoor(access.DoorConfig{
		MaxWait: time.Hour, Hold: time.Hour, Queue: queue,
		Places: map[access.Class]int{access.Work: 2 * places}, // one workspace gets half
	})
	w.Restart()
	busy := create(t, w, api.CreateRequest{})
	send := func(method, path, body string) *http.Response {
		rq, err := http.NewRequestWithContext(t.Context(), method, w.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return httptest.NewRecorder().Result()
		}
		rq.Header.Set("Authorization", "Bearer "+w.Key)
		rq.Header.Set("X-API-Key", w.Key)
		rq.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(rq)
		if err != nil {
			t.Error(err)
			return httptest.NewRecorder().Result()
		}
		_ = res.Body.Close() // only the status and the header count
		return res
	}
	var (
		all     sync.WaitGroup
		refused = make(chan *http.Response, clients)
	)
	for range clients {
		all.Go(func() {
			res := send(http.MethodPost, "/v1/sandboxes/"+string(busy.ID)+"/exec", `{"cmd":"sleep 3600"}`)
			if res.StatusCode == http.StatusTooManyRequests {
				refused <- res
			}
		})
	}
	for range clients - places - queue { // all others hold a place or wait for one
		if res := <-refused; res.Header.Get("Retry-After") == "" {
			t.Errorf("a command that was refused: %v, want Retry-After", res.Header)
		}
	}
	made := create(t, w, api.CreateRequest{})
	if err := w.Client.Sandboxes.Delete(t.Context(), made.ID); err != nil {
		t.Errorf("delete under load: %v", err)
	}
	if res := send(http.MethodPost, "/v2/sandboxes", `{"templateID":"base"}`); res.StatusCode != http.StatusCreated {
		t.Errorf("create through the other API under load: %s", res.Status)
	}
	if res := send(http.MethodDelete, "/sandboxes/"+string(busy.ID), ""); res.StatusCode != http.StatusNoContent {
		t.Errorf("delete of the busy sandbox: %s", res.Status)
	}
	all.Wait() // its commands have ended, and those that waited found no sandbox
}
