package initd

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// UseBatchScheduling schedules this program and all processes it starts as SCHED_BATCH. A process that wakes up then
// waits until the running one sleeps or has used its time slice, instead of preempting it (sched(7)). A program that
// starts or ends wakes the agent several times, and each time the two take turns the kernel switches address spaces.
// Without KVM each switch costs a third of a millisecond, since QEMU drops its translations of pages: running `true`
// took thirteen switches and now takes seven. A program is free to choose another policy.
//
// Call Batch after Devices, and before the program needs many threads.
func UseBatchScheduling() error {
	policy := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}
	known := map[string]bool{}
	// A thread inherits the policy of the thread that created it, so the work is done when a round finds no new thread.
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		found := false
		for _, t := range threads {
			id, err := strconv.Atoi(t.Name())
			if err != nil || known[t.Name()] {
				continue
			}
			if err := unix.SchedSetAttr(id, &policy, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("set scheduling policy: %w", err)
			}
			known[t.Name()], found = true, true
		}
		if !found {
			return nil
		}
	}
}
