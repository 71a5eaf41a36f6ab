package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/pandastack/pandastack/api"
)

// settle is the pause before idle sandboxes are measured, and window is how long their CPU time is measured.
const (
	settle = 10 * time.Second // a guest's kernel writes back dirty pages for some seconds after the start
	window = 20 * time.Second
)

// idle measures memory and CPU time of 1, 50 and 100 idle sandboxes, and checks that each of them replies.
func (r *run) idle(ctx context.Context) error {
	var ids []api.SandboxID
	for _, level := range []int{1, 50, 100} {
		if level > r.MaxIdle {
			r.report.Skipped[fmt.Sprintf("idle_%d", level)] = fmt.Sprintf(
				"more than the %d sandboxes of --max-idle",
				r.MaxIdle,
			)
			return nil
		}
		for len(ids) < level {
			sb, err := r.make(ctx, api.CreateRequest{})
			if err != nil {
				return fmt.Errorf("with %d sandboxes running: %w", len(ids), err)
			}
			ids = append(ids, sb.ID)
		}
		for i, id := range ids {
			word := fmt.Sprintf("I am %d", i)
			if out, err := r.sh(ctx, id, "echo "+word); err != nil || out != word+"\n" {
				return fmt.Errorf("sandbox %d of %d printed %q, want %q: %w", i, level, out, word+"\n", err)
			}
		}
		live := r.series(
			fmt.Sprintf("idle_live_%d", level),
			fmt.Sprintf("sandboxes that run at the same time and reply, of %d", level),
			&Target{Least: float64(level)},
		)
		live.Unit, live.Values = "sandboxes", []float64{float64(len(ids))}
		live.close()
		if err := r.measureIdle(ctx, ids, level); err != nil {
			return err
		}
	}
	return nil
}

// measureIdle measures memory and CPU time of idle sandboxes.
func (r *run) measureIdle(ctx context.Context, ids []api.SandboxID, level int) error {
	if err := wait(ctx, settle); err != nil {
		return err
	}
	shared := &Target{P50: 40}
	if level == 1 {
		shared = nil // a single sandbox shares memory with no other
	}
	pss := r.series(
		fmt.Sprintf("idle_pss_%d", level),
		fmt.Sprintf("memory of an idle sandbox with its monitor (PSS), with %d running", level),
		shared,
	)
	cpu := r.series(
		fmt.Sprintf("idle_cpu_%d", level),
		fmt.Sprintf("CPU time of an idle sandbox, with %d running", level),
		&Target{P50: 0.25},
	)
	pss.Unit, cpu.Unit = "MiB", "% of a core"
	type sample struct {
		at   time.Time
		used float64
	}
	before := make([]sample, len(ids))
	for i, id := range ids {
		u, err := r.cl.Sandboxes.Usage(ctx, id)
		if err != nil {
			return err
		}
		before[i] = sample{time.Now(), u.HostCPUSeconds}
	}
	if err := wait(ctx, window); err != nil {
		return err
	}
	for i, id := range ids {
		u, err := r.cl.Sandboxes.Usage(ctx, id)
		if err != nil {
			return err
		}
		cpu.Values = append(cpu.Values, 100*(u.HostCPUSeconds-before[i].used)/time.Since(before[i].at).Seconds())
		pss.Values = append(pss.Values, float64(u.HostPSSBytes)/(1<<20))
	}
	pss.close()
	cpu.close()
	return nil
}
