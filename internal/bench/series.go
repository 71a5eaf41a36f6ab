package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pandastack/pandastack/api"
)

// firstExec creates a sandbox and runs true in it. It returns the time of the create alone and of both.
func (r *run) firstExec(ctx context.Context) (id api.SandboxID, create, both time.Duration, err error) {
	began := time.Now()
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return "", 0, 0, err
	}
	create = time.Since(began)
	_, err = r.sh(ctx, sb.ID, "true")
	return sb.ID, create, time.Since(began), err
}

// create measures creates, one after the other, staggered and in bursts.
func (r *run) create(ctx context.Context) error {
	if _, _, _, err := r.firstExec(ctx); err != nil { // the first create is not measured: caches are cold
		return err
	}
	alone := r.series("create", "create, request to response", nil)
	both := r.series(
		"create_sequential",
		"create to the end of the first exec, one after the other",
		&Target{P50: 150, P99: 250},
	)
	for range r.times(100) {
		id, create, total, err := r.firstExec(ctx)
		r.add(alone, create, err)
		r.add(both, total, err)
		if err != nil {
			continue
		}
		if err := r.remove(ctx, id); err != nil {
			return err
		}
	}
	staggered := r.series("create_staggered", "create to first exec, one started every 300 ms", nil)
	if err := r.together(ctx, r.times(40), 300*time.Millisecond, staggered); err != nil {
		return err
	}
	burst := r.series("create_burst_20", "create to first exec, 20 started at once", nil)
	whole := r.series("create_burst_20_last", "the last of 20 started at once", nil)
	for range r.times(5) {
		began := time.Now()
		if err := r.together(ctx, 20, 0, burst); err != nil {
			return err
		}
		r.add(whole, time.Since(began), nil)
		if err := r.deleteAll(ctx); err != nil {
			return err
		}
	}
	return nil
}

// together starts n creates with first exec, gap apart, and waits for all of them.
func (r *run) together(ctx context.Context, n int, gap time.Duration, s *Series) error {
	var all sync.WaitGroup
	defer all.Wait()
	for range n {
		all.Go(func() {
			id, _, total, err := r.firstExec(ctx)
			r.add(s, total, err)
			if err == nil && gap > 0 {
				_ = r.remove(ctx, id) // deleteAll retries and returns the error
			}
		})
		if gap > 0 {
			if err := wait(ctx, gap); err != nil {
				return err
			}
		}
	}
	return nil
}

// exec measures commands in one sandbox.
func (r *run) exec(ctx context.Context) error {
	sb, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	for _, one := range []struct {
		name, line, what string
		n                int
		target           *Target
	}{
		{"exec_true", "true", "exec of true, repeatedly in one sandbox", 200, &Target{P50: 20}},
		{"exec_bin_true", "/bin/true", "the same with the program /bin/true", 100, nil},
		{"exec_python", "python3 -c 'print(6*7)'", "exec of a Python one-liner", 30, nil},
	} {
		s := r.series(one.name, one.what, one.target)
		for i := range r.times(one.n) + 3 {
			began := time.Now()
			_, err := r.sh(ctx, sb.ID, one.line)
			if i >= 3 { // the first ones are not measured: the guest's caches are cold
				r.add(s, time.Since(began), err)
			}
		}
	}
	return nil
}

// sizes returns the templates of the series that are measured in several sizes.
func (r *run) sizes(ctx context.Context) ([]api.Template, error) {
	names := r.Sizes
	if len(names) == 0 {
		names = []string{r.Template}
	}
	all := make([]api.Template, 0, len(names))
	for _, name := range names {
		t, err := r.cl.Templates.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		if !t.Baked {
			return nil, fmt.Errorf("template %s is not baked; run 'pandastack template bake %[1]s'", name)
		}
		all = append(all, t)
	}
	return all, nil
}

// forks measures live forks of parents with little and with much dirty memory.
func (r *run) forks(ctx context.Context) error {
	list, err := r.sizes(ctx)
	if err != nil {
		return err
	}
	var all error
	for _, t := range list {
		all = errors.Join(all, r.forkOf(ctx, t, "small", 30), r.forkOf(ctx, t, "128dirty", 10))
	}
	return all
}

// dirty fills 128 MiB of memory with random bytes, creates a file when it is done, and keeps running.
const dirty = `exec python3 -c '
import os, time
b = bytearray(128 << 20)
for i in range(128): b[i<<20:(i+1)<<20] = os.urandom(1 << 20)
open("/tmp/filled", "w").close()
time.sleep(1e6)'`

// makeDirty runs dirty in a sandbox and waits until its memory is filled.
func (r *run) makeDirty(ctx context.Context, id api.SandboxID) error {
	if _, err := r.cl.Sandboxes.Exec(ctx, id, api.ExecRequest{Cmd: dirty, Background: true}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("128 MiB were not filled in 3 minutes"))
	defer cancel()
	for {
		if done, err := r.cl.Files.Exists(ctx, id, "/tmp/filled"); err != nil || done {
			return err
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// forkOf measures n forks of a parent, which has dirty memory unless kind is "small".
func (r *run) forkOf(ctx context.Context, t api.Template, kind string, n int) error {
	parent, err := r.make(ctx, api.CreateRequest{Template: t.Name})
	if err != nil {
		return err
	}
	if kind != "small" {
		if err := r.makeDirty(ctx, parent.ID); err != nil {
			return fmt.Errorf("%s of %s: %w", kind, t.Name, err)
		}
	}
	var pauseTarget, execTarget *Target
	if kind == "small" {
		pauseTarget, execTarget = &Target{P50: 15}, &Target{P50: 90}
	}
	suffix := fmt.Sprintf("_%d_%s", t.MemoryMB, kind)
	pause := r.series("fork_pause"+suffix, "how long the parent is paused, by the node's clock", pauseTarget)
	first := r.series("fork_first_exec"+suffix, "fork to the end of the child's first exec", execTarget)
	for i := range r.times(n) + 1 {
		began := time.Now()
		forked, err := r.cl.Sandboxes.Fork(ctx, parent.ID, api.ForkRequest{Count: 1})
		if err == nil && len(forked.Children) != 1 {
			err = fmt.Errorf("no child was created: %+v", forked.Errors)
		}
		if err != nil {
			r.add(first, 0, err)
			continue
		}
		child := forked.Children[0].ID
		r.remember(child)
		_, err = r.sh(ctx, child, "true")
		if i > 0 { // the first fork is not measured: caches are cold
			r.add(first, time.Since(began), err)
			r.add(pause, time.Duration(forked.PauseMS)*time.Millisecond, err)
		}
		if err := r.remove(ctx, child); err != nil {
			return err
		}
	}
	return r.remove(ctx, parent.ID)
}

// forkTree measures fork trees with 16 children.
func (r *run) forkTree(ctx context.Context) error {
	parent, err := r.make(ctx, api.CreateRequest{})
	if err != nil {
		return err
	}
	s := r.series("fork_tree_16", "fork tree of 16, request to response", &Target{P50: 1000})
	execs := r.series("fork_tree_16_first_exec", "the same, until every child has run a command", nil)
	for range r.times(5) {
		began := time.Now()
		tree, err := r.cl.Sandboxes.ForkTree(ctx, parent.ID, api.ForkTreeRequest{Count: 16})
		r.add(s, time.Since(began), err)
		if err != nil {
			continue
		}
		var all sync.WaitGroup
		errs := make([]error, len(tree.Children))
		for i, c := range tree.Children {
			r.remember(c.ID)
			all.Go(func() { _, errs[i] = r.sh(ctx, c.ID, "true") })
		}
		all.Wait()
		r.add(execs, time.Since(began), errors.Join(errs...))
		for _, c := range tree.Children {
			if err := r.remove(ctx, c.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// hibernate measures hibernate and wake of a guest of every size. The target is for 256 MiB.
func (r *run) hibernate(ctx context.Context) error {
	list, err := r.sizes(ctx)
	if err != nil {
		return err
	}
	var all error
	for _, t := range list {
		all = errors.Join(all, r.hibernateOf(ctx, t))
	}
	return all
}

// hibernateOf measures hibernate and wake of a sandbox of one template.
func (r *run) hibernateOf(ctx context.Context, t api.Template) error {
	sb, err := r.make(ctx, api.CreateRequest{Template: t.Name})
	if err != nil {
		return err
	}
	var target *Target
	if t.MemoryMB == 256 {
		target = &Target{P50: 200}
	}
	name := fmt.Sprintf("_%d", t.MemoryMB)
	down := r.series("hibernate"+name, "hibernate, request to response", target)
	up := r.series("wake_first_exec"+name, "wake to the end of the first exec", target)
	for range r.times(20) {
		began := time.Now()
		err := r.cl.Sandboxes.Hibernate(ctx, sb.ID)
		r.add(down, time.Since(began), err)
		if err != nil {
			return err
		}
		began = time.Now()
		if err = r.cl.Sandboxes.Wake(ctx, sb.ID); err == nil {
			_, err = r.sh(ctx, sb.ID, "true")
		}
		r.add(up, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return r.remove(ctx, sb.ID)
}
