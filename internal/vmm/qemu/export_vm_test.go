//go:build vm

package qemu

import (
	"context"

	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/os/seccomp"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/checkpoint"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Throttled returns the disk limits that the monitor of m applies.
func Throttled(ctx context.Context, m vmm.Machine) ([]vmm.Rate, error) {
	var blocks []struct {
		Inserted struct {
			BPS  int64 `json:"bps"`
			IOPS int64 `json:"iops"`
		} `json:"inserted"`
	}
	if err := m.(*machine).do(ctx, "query-block", nil, &blocks); err != nil {
		return nil, err
	}
	var all []vmm.Rate
	for _, b := range blocks {
		all = append(all, vmm.Rate{Bytes: b.Inserted.BPS, Ops: b.Inserted.IOPS})
	}
	return all, nil
}

// Flushes returns, for each disk, whether the monitor of m passes the guest's flushes on to the medium.
func Flushes(ctx context.Context, m vmm.Machine) ([]bool, error) {
	blocks, err := m.(*machine).blocks(ctx)
	var all []bool
	for _, b := range blocks {
		all = append(all, !b.Inserted.Cache.NoFlush)
	}
	return all, err
}

// Base returns the description of the process that the monitor of m was restored from, or nil if it is not known.
func Base(m vmm.Machine) *checkpoint.Checkpoint {
	from := m.(*machine).restoredFrom
	if from == nil {
		return nil
	}
	return &from.Process
}

// AllowOnlyStart makes a driver allow its monitors only the calls that start a program in a jail, so that all others
// are recorded.
func AllowOnlyStart(t vmmtest.TB, driver vmm.Driver) {
	policy, err := seccomp.New(startCalls)
	if err != nil {
		t.Fatal(err)
	}
	d := driver.(*Driver)
	d.syscalls, d.stubSyscalls = policy, policy
}

// Allows reports whether a monitor or a restore stub may make a call.
func Allows(t vmmtest.TB, c jail.RefusedCall) bool {
	_, stub, err := syscallPolicies(vmm.TCG, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stub.Allows(c.Name, c.Args)
}
