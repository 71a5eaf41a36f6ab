//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/test/nodelab"
)

// TestSchedules runs commands on time in a sandbox and in new ones, and kills the node meanwhile.
func TestSchedules(t *testing.T) {
	dir := nodelab.DataDir(t)
	n := nodelab.Start(t, dir)
	n.Bake("mini")
	box := n.Create("--persistent").ID
	n.OK("schedule", "create", "tick", "--cron", "@every 1s", "--sandbox", box,
		"--", "echo $PANDASTACK_RUN_ID >> /tmp/runs")
	n.OK("schedule", "create", "job", "--cron", "0 0 1 1 *", "--template", "mini", "--", "echo hello; exit 3")
	r := n.CLI("schedule", "trigger", "job")
	if r.Code != 3 || r.Stdout != "hello\n" {
		t.Errorf("trigger: exit %d, %q, %s; want 3 and hello", r.Code, r.Stdout, r.Stderr)
	}
	ticks := func() (done []api.ScheduleRun) {
		var all []api.ScheduleRun
		n.JSON(&all, "schedule", "runs", "tick", "--limit", "100")
		for _, run := range all {
			if run.Status == api.RunSuccess {
				done = append(done, run)
			}
		}
		return done
	}
	await := func(want int) {
		t.Helper()
		nodelab.Eventually(t, "runs", func() error {
			if got := len(ticks()); got < want {
				return fmt.Errorf("%d runs have succeeded, want %d", got, want)
			}
			return nil
		})
	}
	await(2)
	n.Kill()
	n = nodelab.Start(t, dir)
	await(len(ticks()) + 2)
	n.OK("schedule", "pause", "tick")
	moments := map[string]bool{}
	written := n.Sh(box, "cat /tmp/runs")
	for _, run := range ticks() {
		if at := run.ScheduledFor.String(); moments[at] {
			t.Errorf("two runs for %s", at)
		} else {
			moments[at] = true
		}
		if n := strings.Count(written, string(run.ID)); n != 1 {
			t.Errorf("the command of run %s, attempt %d, ran %d times", run.ID, run.Attempt, n)
		}
	}
	n.OK("schedule", "delete", "tick")
	n.OK("schedule", "delete", "job")
	n.JSON(nil, "sandbox", "delete", box)
	n.Stop()
	nodelab.NothingLeft(t, dir)
}
