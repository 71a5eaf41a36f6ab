//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestKillsUnderChurn kills the node again and again while it creates, forks, hibernates and deletes. Sandboxes that
// write numbered lines to their disks all the time must lose none, and must go on with the memory that they had.
func TestKillsUnderChurn(t *testing.T) {
	l := open(t)
	writers := make([]api.SandboxID, 3)
	counted := make([]int, len(writers))
	for i := range writers {
		writers[i] = l.create(true)
		l.background(writers[i], counter)
	}
	l.await(writers, counted)
	for round := range 3 * *scale {
		churned := l.churn(int64(3+l.random.IntN(12)), l.node.Kill)
		for op, codes := range churned {
			for c, n := range codes {
				if c != api.Unavailable && c != api.Canceled && c != api.NoCapacity {
					t.Errorf("round %d: %s failed %d times with %s, want errors that may be retried", round, op, n, c)
				}
			}
		}
		l.restart()
		l.await(writers, counted)
		l.settle(writers)
	}
}

// await waits until every writer has counted on, and updates counted.
func (l *lab) await(writers []api.SandboxID, counted []int) {
	l.t.Helper()
	for i, id := range writers {
		nodelab.Eventually(l.t, fmt.Sprintf("writer %s counts on from %d", id, counted[i]), func() error {
			n, err := l.count(id)
			if err != nil {
				return err
			}
			if n <= counted[i] {
				return fmt.Errorf("it is at %d", n)
			}
			counted[i] = n
			return nil
		})
	}
}

// churn runs operations on sandboxes of its own, calls end after a number of them, and goes on until they fail because
// the node is gone. It returns the codes of the failures of each operation.
func (l *lab) churn(after int64, end func()) map[string]map[api.Code]int {
	l.t.Helper()
	var (
		mu     sync.Mutex
		failed = map[string]map[api.Code]int{}
		done   atomic.Int64
		all    sync.WaitGroup
		ended  = make(chan struct{})
		reach  = make(chan struct{})
		once   sync.Once
	)
	c := l.client
	do := func(op string, call func(context.Context) error) bool {
		ctx, cancel := within()
		defer cancel()
		err := call(ctx)
		if err != nil {
			mu.Lock()
			if failed[op] == nil {
				failed[op] = map[api.Code]int{}
			}
			failed[op][code(err)]++
			mu.Unlock()
		}
		if done.Add(1) >= after {
			once.Do(func() { close(reach) })
		}
		return err == nil
	}
	for worker := range 3 {
		choices := rand.New(rand.NewPCG(l.random.Uint64(), uint64(worker)))
		all.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
					churnOnce(c, choices, do)
				}
			}
		})
	}
	<-reach
	end()
	close(ended)
	all.Wait()
	return failed
}

// churnOnce takes one sandbox through its life.
func churnOnce(c *client.Client, choices *rand.Rand, do func(string, func(context.Context) error) bool) {
	var id api.SandboxID
	if !do("create", func(ctx context.Context) error {
		s, err := c.Sandboxes.Create(ctx, api.CreateRequest{Template: "mini", Persistent: choices.IntN(2) == 0})
		id = s.ID
		return err
	}) {
		return
	}
	switch choices.IntN(3) {
	case 0:
		do("fork", func(ctx context.Context) error {
			out, err := c.Sandboxes.Fork(ctx, id, api.ForkRequest{Count: 2})
			for _, child := range out.Children {
				do("delete", func(ctx context.Context) error { return c.Sandboxes.Delete(ctx, child.ID) })
			}
			return err
		})
	case 1:
		do("hibernate", func(ctx context.Context) error { return c.Sandboxes.Hibernate(ctx, id) })
		do("wake", func(ctx context.Context) error { return c.Sandboxes.Wake(ctx, id) })
	case 2:
		do("exec", func(ctx context.Context) error {
			_, err := c.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: "true"})
			return err
		})
	}
	do("delete", func(ctx context.Context) error { return c.Sandboxes.Delete(ctx, id) })
}

// settle waits until no sandbox is in the middle of an operation, then deletes all but the given ones.
func (l *lab) settle(keep []api.SandboxID) {
	l.t.Helper()
	kept := map[api.SandboxID]bool{}
	for _, id := range keep {
		kept[id] = true
	}
	var rest []api.SandboxID
	nodelab.Eventually(l.t, "interrupted operations are finished or undone", func() error {
		ctx, cancel := within()
		defer cancel()
		rest = rest[:0]
		list, err := l.client.Sandboxes.List(ctx, api.SandboxFilter{})
		for _, s := range list {
			switch s.Status {
			case api.Creating, api.Hibernating, api.Waking, api.Stopping:
				return fmt.Errorf("%s is %s", s.ID, s.Status)
			}
			if !kept[s.ID] {
				rest = append(rest, s.ID)
			}
		}
		return err
	})
	for _, id := range rest {
		ctx, cancel := within()
		if err := l.client.Sandboxes.Delete(ctx, id); err != nil {
			l.t.Errorf("delete %s: %v", id, err)
		}
		cancel()
	}
}

// TestKillDuringHibernateAndWake kills the node at random moments while it hibernates and wakes a sandbox. Neither the
// memory nor the disk may be lost, whether the sandbox is persistent or not.
func TestKillDuringHibernateAndWake(t *testing.T) {
	l := open(t)
	for _, persistent := range []bool{true, false} {
		for range 2 {
			l.killCycles(l.create(persistent), *scale)
		}
	}
}

// killCycles kills the node while it hibernates and wakes a sandbox, each round at another moment.
func (l *lab) killCycles(id api.SandboxID, rounds int) {
	l.t.Helper()
	cycle := func(c *client.Client) error {
		ctx, cancel := within()
		defer cancel()
		if err := c.Sandboxes.Hibernate(ctx, id); err != nil {
			return err
		}
		return c.Sandboxes.Wake(ctx, id)
	}
	began := time.Now()
	if err := cycle(l.client); err != nil {
		l.t.Fatal(err)
	}
	took := time.Since(began)
	for round := range rounds {
		l.must(id, fmt.Sprintf("echo %d >/dev/shm/round; echo %[1]d >/round; sync", round))
		ended := make(chan error, 1)
		c := l.client
		go func() { ended <- cycle(c) }()
		at := time.Duration(l.random.Int64N(int64(took)))
		timer := time.NewTimer(at)
		<-timer.C
		l.node.Kill()
		<-ended // usually an error: the node is gone
		l.restart()
		got := ""
		nodelab.Eventually(l.t, fmt.Sprintf("%s runs after a kill at %v of %v", id, at, took), func() (err error) {
			got, err = l.exec(id, "cat /dev/shm/round /round") // wakes it
			return err
		})
		if want := fmt.Sprintf("%d\n%[1]d", round); got != want {
			l.t.Fatalf("killed after %v of %v: memory and disk have %q, want %q", at, took, got, want)
		}
	}
}
