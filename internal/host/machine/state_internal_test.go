package machine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// TestStatePairs walks all pairs of states against the moves that operations need.
func TestStatePairs(t *testing.T) {
	want := []string{
		"creating>destroying", "creating>running",
		"failed>destroying", "failed>waking",
		"hibernated>destroying", "hibernated>waking",
		"hibernating>destroying", "hibernating>failed", "hibernating>hibernated", "hibernating>paused", "hibernating>running",
		"paused>destroying", "paused>failed", "paused>hibernating", "paused>running",
		"running>destroying", "running>failed", "running>hibernating", "running>paused",
		"waking>destroying", "waking>failed", "waking>hibernated", "waking>running",
	}
	var got []string
	for from := range transitions {
		if _, ok := publicState[from]; !ok {
			t.Errorf("state %s is not shown outside", from)
		}
		for to := range transitions {
			if !from.canBecome(from) {
				t.Errorf("%s may not stay", from)
			}
			if from != to && from.canBecome(to) {
				got = append(got, fmt.Sprintf("%s>%s", from, to))
			}
		}
		if from != destroying && !from.canBecome(destroying) {
			t.Errorf("%s cannot be destroyed", from)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("moves\n%v\nwant\n%v", got, want)
	}
	if len(publicState) != len(transitions) {
		t.Errorf("%d states shown, %d exist", len(publicState), len(transitions))
	}
}

func TestChoose(t *testing.T) {
	all := vmm.Capabilities{Name: "all", Snapshot: true, LiveFork: true}
	none := vmm.Capabilities{Name: "none"}
	more := vmm.Capabilities{Name: "more", Snapshot: true, MemoryHotplug: true}
	for _, tc := range []struct {
		name string
		want startRequest
		can  vmm.Capabilities
		text string
		err  error
	}{
		{"create", startRequest{op: "create", image: "a/b", haveMiB: 10}, all, "restore disk=10MiB image=a/b", nil},
		{"create-larger", startRequest{op: "create", image: "a/b", haveMiB: 10, askMiB: 20}, all, "restore disk=20MiB image=a/b grow", nil},
		{"create-smaller", startRequest{op: "create", image: "a/b", haveMiB: 10, askMiB: 5}, all, "", hostapi.ErrInvalid},
		{"create-memory", startRequest{op: "create", image: "a/b", memory: memoryRequest{64, 128, 99}}, more, "restore disk=0MiB image=a/b memory=100MiB", nil},
		{"create-same-memory", startRequest{op: "create", image: "a/b", memory: memoryRequest{64, 128, 64}}, all, "restore disk=0MiB image=a/b memory=64MiB", nil},
		{"create-less-memory", startRequest{op: "create", image: "a/b", memory: memoryRequest{64, 128, 62}}, more, "", hostapi.ErrInvalid},
		{"create-much-memory", startRequest{op: "create", image: "a/b", memory: memoryRequest{64, 128, 130}}, more, "", hostapi.ErrInvalid},
		{"create-memory-unable", startRequest{op: "create", image: "a/b", memory: memoryRequest{64, 128, 100}}, all, "", hostapi.ErrInvalid},
		{"create-of-nothing", startRequest{op: "create"}, all, "", hostapi.ErrInvalid},
		{"create-unable", startRequest{op: "create", image: "a/b"}, none, "", hostapi.ErrUnsupported},
		{"fork", startRequest{op: "fork", image: "a/b", haveMiB: 10}, all, "fork disk=10MiB image=a/b", nil},
		{"fork-booted", startRequest{op: "fork", haveMiB: 10}, all, "copy disk=10MiB", nil},
		{"fork-unable", startRequest{op: "fork", image: "a/b"}, vmm.Capabilities{Snapshot: true}, "", hostapi.ErrUnsupported},
		{"wake", startRequest{op: "wake", image: "a/b", haveMiB: 10, kernel: true}, all, "wake disk=10MiB image=a/b", nil},
		{"wake-failed", startRequest{op: "wake", haveMiB: 10, kernel: true}, none, "boot disk=10MiB", nil},
		{"wake-without-kernel", startRequest{op: "wake", haveMiB: 10}, all, "", hostapi.ErrUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := planStart(tc.want, tc.can)
			checkErr(t, err, tc.err)
			if err == nil && got.String() != tc.text {
				t.Errorf("start %q, want %q", got, tc.text)
			}
		})
	}
}
