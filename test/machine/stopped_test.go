//go:build vm

package machine

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

// TestStoppedMonitor stops a monitor. Operations on the machine fail by themselves, it continues with the monitor, and
// Destroy waits for nothing.
func TestStoppedMonitor(t *testing.T) {
	freezeTimeout = 2 * time.Second
	defer func() { freezeTimeout = 0 }()
	closeShared(t)
	l := host(t)
	defer closeShared(t)
	mc := l.create(t, hostapi.Create{ID: "stopped0"})
	signal := func(sig syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(mc.PID, sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	for name, do := range map[string]func() error{
		"pause":     func() error { return l.Pause(t.Context(), mc.ID) },
		"hibernate": func() error { return l.Hibernate(t.Context(), mc.ID) },
		"fork": func() error {
			_, err := l.Fork(t.Context(), hostapi.Fork{Parent: mc.ID, Children: []hostapi.Child{{ID: "stopped1"}}})
			return err
		},
		"snapshot": func() error { _, err := l.TakeSnapshot(t.Context(), mc.ID, "stoppedsnapshot", nil); return err },
	} {
		began := time.Now()
		err := do()
		t.Logf("%s: %v after %v", name, err, time.Since(began))
		if err == nil {
			t.Errorf("%s of a machine whose monitor is stopped succeeded", name)
		}
	}
	signal(syscall.SIGCONT)
	wait(t, "the machine can be paused again", func() bool { return l.Pause(t.Context(), mc.ID) == nil })
	if err := l.Resume(t.Context(), mc.ID); err != nil {
		t.Fatal(err)
	}
	if got := l.run(t, mc.ID, "echo works"); got != "works" {
		t.Errorf("the machine prints %q after its monitor continued", got)
	}
	signal(syscall.SIGSTOP)
	result := make(chan error, 1)
	go func() { result <- l.Pause(t.Context(), mc.ID) }()
	began := time.Now()
	wait(t, "the operation and the machine end", func() bool {
		if err := l.Destroy(t.Context(), mc.ID, "test"); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-result:
			t.Logf("destroyed after %v: the operation got %v", time.Since(began), err)
			if !errors.Is(err, hostapi.ErrNotFound) {
				t.Errorf("the operation got %v, want ErrNotFound", err)
			}
			return true
		default:
			return false
		}
	})
}
