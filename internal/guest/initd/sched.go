package initd

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Batch has this program, and all that it starts, scheduled as SCHED_BATCH (sched(7)): who wakes up waits until who
// runs sleeps or has used up its slice, instead of interrupting it. A program that begins or ends wakes the agent
// several times, and each time that the two take turns the address space is exchanged for another. Without KVM each
// exchange costs a third of a millisecond, since QEMU forgets where pages are; to run `true` took thirteen of them and
// takes seven. A program is free to choose another policy.
//
// It comes after Devices, and before whatever needs many threads.
func Batch() error {
	policy := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_BATCH}
	known := map[string]bool{}
	for { // a thread has the policy of the one that made it, so it is over when a round finds none that is new
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
