//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
)

// TestManyClients sends mixed requests of 200 clients at once. Each must succeed, or be refused in a way that says when
// to try again; the node must not fail by itself, and must work as before afterwards.
func TestManyClients(t *testing.T) {
	l := open(t)
	shared := []api.SandboxID{l.create(false), l.create(false)}
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(l.node.URL, l.node.AccessKey(), client.WithTries(1),
		client.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		seen = map[string]map[api.Code]int{}
	)
	note := func(op string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if seen[op] == nil {
			seen[op] = map[api.Code]int{}
		}
		seen[op][code(err)]++
		if info := code(err).Info(); err != nil && !info.Retryable {
			t.Errorf("%s under load: %v; want success or an error that may be retried", op, err)
		}
	}
	request := func(ctx context.Context, i, round int) {
		id := shared[(i+round)%len(shared)]
		switch (i + round) % 10 {
		case 0:
			s, err := c.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini"})
			note("create", err)
			if err != nil {
				return
			}
			for err = c.Sandboxes.Delete(ctx, s.ID); err != nil && ctx.Err() == nil; {
				note("delete", err)
				err = c.Sandboxes.Delete(ctx, s.ID)
			}
			note("delete", err)
		case 1, 2, 3:
			_, err := c.Sandboxes.Get(ctx, id)
			note("get", err)
		case 4:
			_, err := c.Sandboxes.List(ctx, api.SandboxFilter{Limit: 20})
			note("list", err)
		default:
			out, err := c.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: fmt.Sprintf("echo %d", i)})
			if err == nil && out.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("client %d got output %q", i, out.Stdout)
			}
			note("exec", err)
		}
	}
	for i := range 200 {
		all.Go(func() {
			for round := range 3 * *scale {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				request(ctx, i, round)
				cancel()
			}
		})
	}
	all.Wait()
	t.Logf("responses: %v", seen)
	for _, op := range []string{"create", "delete", "get", "list", "exec"} {
		if seen[op][""] == 0 {
			t.Errorf("no %s succeeded under load: %v", op, seen[op])
		}
	}
	for _, id := range shared {
		if got := l.must(id, "echo here"); got != "here" {
			t.Errorf("output after the load = %q, want here", got)
		}
	}
}
