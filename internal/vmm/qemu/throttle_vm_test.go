//go:build vm

package qemu_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// testRates checks that disk rate limits apply whatever the machine was made from: an image and a
// parent with another limit or none.
func testRates(t *testing.T, h *vmmtest.Host) {
	bound := vmm.Rate{Bytes: 8 << 20, Ops: 500}
	slow, fewer := h.WithRate(bound), h.WithRate(vmm.Rate{Ops: 100})
	m := slow.Restore(t)
	wantThrottles(t, m, bound)
	began := time.Now()
	if r := m.Run(t, "dd if=/dev/vda of=/dev/null iflag=direct bs=1M count=8"); r.Exit.Code != 0 {
		t.Fatalf("got %+v, want exit code 0", r)
	}
	// One request may exceed the burst of a tenth of a second. A loaded host takes longer.
	if took := time.Since(began); took < 700*time.Millisecond {
		t.Errorf("reading 8 MiB at 8 MiB/s took %v, want at least 700ms", took)
	}
	wantThrottles(t, slow.Fork(t, m, 1)[0], bound)
	wantThrottles(t, fewer.Fork(t, m, 1)[0], vmm.Rate{Ops: 100})
	wantThrottles(t, h.Fork(t, m, 1)[0], vmm.Rate{})
	wantThrottles(t, m, bound)

	if err := errors.Join(m.Link.Freeze(t.Context(), true), m.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	image, disk := slow.Save(t, m)
	if !slices.Equal(image.Manifest.DiskRates, []vmm.Rate{bound}) {
		t.Errorf("got disk rates %v in the image, want %v", image.Manifest.DiskRates, bound)
	}
	wantThrottles(t, slow.RestoreFrom(t, image, disk), bound)
	free := h.RestoreFrom(t, image, disk)
	wantThrottles(t, free, vmm.Rate{})
	wantThrottles(t, fewer.Fork(t, free, 1)[0], vmm.Rate{Ops: 100})

	if err := free.Link.Close(); err != nil {
		t.Error(err)
	}
	for _, rate := range []vmm.Rate{bound, {Ops: 9}, {}} { // limits of a running machine that is adopted
		spec := free.Spec
		spec.Disks = slices.Clone(spec.Disks)
		spec.Disks[0].Rate = rate
		again, err := h.Driver.Adopt(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		wantThrottles(t, &vmmtest.Machine{Machine: again}, rate)
	}
}

func wantThrottles(t *testing.T, m *vmmtest.Machine, want vmm.Rate) {
	t.Helper()
	got, err := qemu.Throttled(t.Context(), m.Machine)
	if err != nil || !slices.Equal(got, []vmm.Rate{want}) {
		t.Errorf("Throttled() = %v, %v; want %v", got, err, want)
	}
}
