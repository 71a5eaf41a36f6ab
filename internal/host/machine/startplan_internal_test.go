package machine

import (
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// TestPlanStart compares the plan of every kind of start, step by step, with the expected one.
func TestPlanStart(t *testing.T) {
	all := vmm.Capabilities{Name: "all", Snapshot: true, LiveFork: true}
	none := vmm.Capabilities{Name: "none"}
	more := vmm.Capabilities{Name: "more", Snapshot: true, Memory: vmm.MemoryFeatures{Hotplug: true}}
	const (
		provisioned = "admit directory slot cgroup disks "
		loaded      = "prepare start load confirm publish"
		booted      = "boot start confirm publish"
		create      = startOp("create")
	)
	for _, tc := range []struct {
		name string
		req  startRequest
		can  vmm.Capabilities
		want string
		err  error
	}{
		{"create", startRequest{op: create, image: "a/b", haveMiB: 10}, all,
			"restore disk=10MiB,clone image=a/b: " + provisioned + loaded, nil},
		{"create_larger_disk", startRequest{op: create, image: "a/b", haveMiB: 10, askMiB: 20}, all,
			"restore disk=20MiB,clone image=a/b grow: " + provisioned + loaded, nil},
		{"create_smaller_disk", startRequest{op: create, image: "a/b", haveMiB: 10, askMiB: 5}, all,
			"", hostapi.ErrInvalid},
		{"create_remote_backed", startRequest{op: create, image: "a/b", haveMiB: 10, remote: true}, all,
			"restore disk=10MiB,remote image=a/b: " + provisioned + "stream " + loaded, nil},
		{"create_more_memory", startRequest{op: create, image: "a/b", memory: memoryRequest{64, 128, 99}}, more,
			"restore disk=0MiB,clone image=a/b memory=100MiB: " + provisioned + loaded, nil},
		{"create_same_memory", startRequest{op: create, image: "a/b", memory: memoryRequest{64, 128, 64}}, all,
			"restore disk=0MiB,clone image=a/b memory=64MiB: " + provisioned + loaded, nil},
		{"create_less_memory", startRequest{op: create, image: "a/b", memory: memoryRequest{64, 128, 62}}, more,
			"", hostapi.ErrInvalid},
		{"create_too_much_memory", startRequest{op: create, image: "a/b", memory: memoryRequest{64, 128, 130}}, more,
			"", hostapi.ErrInvalid},
		{"create_memory_without_hotplug",
			startRequest{op: create, image: "a/b", memory: memoryRequest{64, 128, 100}}, all, "", hostapi.ErrInvalid},
		{"create_without_snapshot", startRequest{op: create}, all, "", hostapi.ErrInvalid},
		{"create_unsupported", startRequest{op: create, image: "a/b"}, none, "", hostapi.ErrUnsupported},
		{"fork", startRequest{op: opFork, image: "a/b", haveMiB: 10}, all,
			"fork disk=10MiB,empty image=a/b: " + provisioned + loaded, nil},
		{"fork_of_booted", startRequest{op: opFork, haveMiB: 10}, all,
			"copy disk=10MiB,clone: " + provisioned + loaded, nil},
		{"fork_unsupported", startRequest{op: opFork, image: "a/b"}, vmm.Capabilities{Snapshot: true},
			"", hostapi.ErrUnsupported},
		{"wake", startRequest{op: opWake, image: "a/b", haveMiB: 10, kernel: true}, all,
			"wake disk=10MiB,image image=a/b: admit repair slot cgroup disks prepare waking " +
				"start load confirm consume publish", nil},
		{"wake_of_failed", startRequest{op: opWake, haveMiB: 10, kernel: true}, none,
			"reboot disk=10MiB,own: admit repair slot cgroup waking " + booted, nil},
		{"wake_without_kernel", startRequest{op: opWake, haveMiB: 10}, all, "", hostapi.ErrUnsupported},
		{"boot", startRequest{op: opBoot, haveMiB: 10, askMiB: 5, kernel: true}, none,
			"boot disk=10MiB,clone: " + provisioned + booted, nil},
		{"boot_without_kernel", startRequest{op: opBoot, haveMiB: 10}, all, "", hostapi.ErrUnsupported},
		{"boot_from_premount", startRequest{op: opBoot, image: "a/b", haveMiB: 10, askMiB: 20}, all,
			"premount disk=20MiB,clone image=a/b grow: " + provisioned + loaded, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := planStart(tc.req, tc.can)
			checkErr(t, err, tc.err)
			if err == nil && got.String() != tc.want {
				t.Errorf("planStart(%+v) =\n%s, want\n%s", tc.req, got, tc.want)
			}
			for _, s := range got.steps {
				if stepFuncs[s] == nil {
					t.Errorf("step %s has no function", s)
				}
			}
		})
	}
}

// TestPlanOfWarmMonitor checks that making a warm monitor and adopting it are, together, a restore.
func TestPlanOfWarmMonitor(t *testing.T) {
	plan, err := planStart(startRequest{op: opCreate, image: "a/b"}, vmm.Capabilities{Snapshot: true})
	checkErr(t, err, nil)
	if got, want := plan.forWarmMonitor().steps, plan.steps[1:6]; !slices.Equal(got, want) {
		t.Errorf("forWarmMonitor().steps = %v, want %v", got, want)
	}
	want := slices.Concat([]step{stepAdmit, stepAdopt, stepEgress, stepSwap}, plan.steps[6:])
	if got := plan.withWarmMonitor().steps; !slices.Equal(got, want) {
		t.Errorf("withWarmMonitor().steps = %v, want %v", got, want)
	}
	plan, err = planStart(startRequest{op: opCreate, image: "a/b", volumes: true}, vmm.Capabilities{Snapshot: true})
	checkErr(t, err, nil)
	want = slices.Insert(want, 3, stepAttach)
	if got := plan.withWarmMonitor().steps; !slices.Equal(got, want) {
		t.Errorf("withWarmMonitor().steps with volumes = %v, want %v", got, want)
	}
}

// TestVolumesAreNotOwned checks that nothing clones, allocates or removes a volume by default.
func TestVolumesAreNotOwned(t *testing.T) {
	disks := []disk{{kind: diskRoot, path: "root"}, {kind: diskVolume, path: "volume"}, {kind: diskData, path: "data"}}
	if got, want := ownPaths(disks), []string{"root", "data"}; !slices.Equal(got, want) {
		t.Errorf("ownPaths = %v, want %v", got, want)
	}
}
