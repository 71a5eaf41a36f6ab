package integrationtest_test

import (
	"bytes"
	"context"
	"net/http"
	"runtime"
	"strconv"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/integrationtest"
)

// churn makes sandboxes, one after the other, uses much of each of them, and deletes it.
func churn(t *testing.T, w *integrationtest.Platform, sandboxes int) {
	t.Helper()
	ctx := t.Context()
	big := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	for n := range sandboxes {
		sb := create(t, w, api.CreateRequest{Persistent: n%2 == 0, Metadata: map[string]string{"n": strconv.Itoa(n)}})
		if got := len(sh(t, w, sb.ID, "echo "+string(big))); got != len(big) {
			t.Fatalf("got %d bytes of output", got)
		}
		size := int64(len(big))
		_, err := w.Client.Files.Write(ctx, sb.ID, "/tmp/big", bytes.NewReader(big), size, client.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		follow, stop := context.WithCancel(ctx)
		followed := make(chan error, 1)
		go func() {
			followed <- w.Client.Sandboxes.FollowEvents(follow, sb.ID, func(api.Event) error { return nil })
		}()
		fork, err := w.Client.Sandboxes.Fork(ctx, sb.ID, api.ForkRequest{Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Client.Sandboxes.Hibernate(ctx, sb.ID); err != nil {
			t.Fatal(err)
		}
		sh(t, w, sb.ID, "true") // wakes it
		stop()
		<-followed
		for _, id := range []api.SandboxID{sb.ID, fork.Children[0].ID, fork.Children[1].ID} {
			if err := w.Client.Sandboxes.Delete(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// live returns how many goroutines there are, and how many bytes and objects are reachable.
func live() (goroutines int, size, objects uint64) {
	http.DefaultClient.CloseIdleConnections()
	for range 3 { // pools are emptied by the second collection, and what they held is freed by the third
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return runtime.NumGoroutine(), m.HeapAlloc, m.HeapObjects
}

// TestDeletedSandboxesLeaveNothing checks that nothing in the process refers to a sandbox that was deleted: neither
// goroutines nor memory remain of it.
func TestDeletedSandboxesLeaveNothing(t *testing.T) {
	const sandboxes = 16
	w := integrationtest.New(t)
	churn(t, w, 4) // caches fill once
	goroutines, size, objects := live()
	churn(t, w, sandboxes)
	until(t, "all goroutines of sandboxes have ended", func() bool {
		now, _, _ := live()
		return now <= goroutines
	})
	_, sizeNow, objectsNow := live()
	if grown := int64(objectsNow) - int64(objects); grown > 20*sandboxes {
		t.Errorf("%d objects remain of %d sandboxes, each with two forks", grown, sandboxes)
	}
	if grown := int64(sizeNow) - int64(size); grown > 16<<10*sandboxes {
		t.Errorf("%d bytes remain of %d sandboxes, each with two forks", grown, sandboxes)
	}
}
