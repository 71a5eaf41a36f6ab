// Package quotatest has what tests of services with quotas share.
package quotatest

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/control/quota"
)

// Used returns what a workspace uses of a kind, in its unit.
func Used(t testing.TB, q *quota.Quotas, workspace api.Workspace, kind quota.Kind) int64 {
	t.Helper()
	all, err := q.Usage(t.Context(), workspace)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range all {
		if u.Kind == string(kind) {
			return *u.Used
		}
	}
	t.Fatalf("no kind %s", kind)
	return 0
}

// Race calls try with the numbers below requests, all at once.
//
// It fails the test unless exactly the allowed number of calls succeed and a quota refuses the others.
func Race(t testing.TB, requests, allowed int, try func(n int) error) {
	t.Helper()
	var made, over atomic.Int32
	var wg sync.WaitGroup
	for n := range requests {
		wg.Go(func() {
			switch err := try(n); {
			case err == nil:
				made.Add(1)
			case api.CodeOf(err) == api.QuotaExceeded:
				over.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if int(made.Load()) != allowed || int(over.Load()) != requests-allowed {
		t.Errorf("%d of %d requests at once succeeded and a quota refused %d, want %d and %d",
			made.Load(), requests, over.Load(), allowed, requests-allowed)
	}
}
