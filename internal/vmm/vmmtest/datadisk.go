package vmmtest

import (
	"fmt"
	"strings"
)

// testTwoDisks checks, for machines with a data disk, what the other tests check for one disk: both disks are of the
// same moment as the memory, after a restore, in the children of a fork and in a chain of forks, and a parent's
// disks are its own.
func testTwoDisks(t TB, h *Host) {
	const generations, size = 3, 300_000
	h = h.WithData(t)
	m := h.Restore(t)
	if r := m.Run(t, "cat /proc/mounts"); r.Exit.Code == 0 && r.Stdout != "" &&
		!strings.Contains(r.Stdout, "/dev/vdb "+dataDir+" ext4") {
		t.Errorf("mounts = %s, want the data disk among them", r.Stdout)
	}
	path := func(dir string, g uint64) string { return fmt.Sprintf("%s/%d", dir, g) }
	put := func(m *Machine, g uint64) {
		m.Put(t, path("/root", g), random(2*g, size))
		m.Put(t, path(dataDir, g), random(2*g+1, size))
	}
	want := func(m *Machine, generations uint64) {
		m.Run(t, "sync; echo 3 > /proc/sys/vm/drop_caches") // so that it comes from the disks
		for g := range generations {
			m.WantFile(t, path("/root", g), random(2*g, size))
			m.WantFile(t, path(dataDir, g), random(2*g+1, size))
		}
		if _, ok := m.Read(t, path(dataDir, generations)); ok {
			t.Errorf("machine %s has a file that another wrote to its data disk", m.Spec.ID)
		}
	}
	all := []*Machine{m}
	for g := range uint64(generations) {
		put(m, g)
		m = h.Fork(t, m, 1)[0]
		all = append(all, m)
	}
	for i, m := range all {
		want(m, uint64(min(i+1, generations)))
	}
	must(t, m.Link.Freeze(t.Context(), true))
	must(t, m.Pause(t.Context()))
	image, disk := h.Save(t, m)
	must(t, m.Kill(t.Context()))
	again := h.RestoreFrom(t, image, disk)
	want(again, generations)
	put(again, generations)
	want(again, generations+1)
}
