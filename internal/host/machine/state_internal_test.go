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
	for from := range moves {
		if _, ok := shown[from]; !ok {
			t.Errorf("state %s is not shown outside", from)
		}
		for to := range moves {
			if !from.may(from) {
				t.Errorf("%s may not stay", from)
			}
			if from != to && from.may(to) {
				got = append(got, fmt.Sprintf("%s>%s", from, to))
			}
		}
		if from != destroying && !from.may(destroying) {
			t.Errorf("%s cannot be destroyed", from)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("moves\n%v\nwant\n%v", got, want)
	}
	if len(shown) != len(moves) {
		t.Errorf("%d states shown, %d exist", len(shown), len(moves))
	}
}

func TestChoose(t *testing.T) {
	all := vmm.Capabilities{Name: "all", Snapshot: true, LiveFork: true}
	none := vmm.Capabilities{Name: "none"}
	more := vmm.Capabilities{Name: "more", Snapshot: true, MoreMemory: true}
	for _, tc := range []struct {
		name string
		want want
		can  vmm.Capabilities
		text string
		err  error
	}{
		{"create", want{op: "create", image: "a/b", haveMiB: 10}, all, "restore disk=10MiB image=a/b", nil},
		{"create-larger", want{op: "create", image: "a/b", haveMiB: 10, askMiB: 20}, all, "restore disk=20MiB image=a/b grow", nil},
		{"create-smaller", want{op: "create", image: "a/b", haveMiB: 10, askMiB: 5}, all, "", hostapi.ErrInvalid},
		{"create-memory", want{op: "create", image: "a/b", memory: memoryWant{64, 128, 99}}, more, "restore disk=0MiB image=a/b memory=100MiB", nil},
		{"create-same-memory", want{op: "create", image: "a/b", memory: memoryWant{64, 128, 64}}, all, "restore disk=0MiB image=a/b memory=64MiB", nil},
		{"create-less-memory", want{op: "create", image: "a/b", memory: memoryWant{64, 128, 62}}, more, "", hostapi.ErrInvalid},
		{"create-much-memory", want{op: "create", image: "a/b", memory: memoryWant{64, 128, 130}}, more, "", hostapi.ErrInvalid},
		{"create-memory-unable", want{op: "create", image: "a/b", memory: memoryWant{64, 128, 100}}, all, "", hostapi.ErrInvalid},
		{"create-of-nothing", want{op: "create"}, all, "", hostapi.ErrInvalid},
		{"create-unable", want{op: "create", image: "a/b"}, none, "", hostapi.ErrUnsupported},
		{"fork", want{op: "fork", image: "a/b", haveMiB: 10}, all, "fork disk=10MiB image=a/b", nil},
		{"fork-booted", want{op: "fork", haveMiB: 10}, all, "copy disk=10MiB", nil},
		{"fork-unable", want{op: "fork", image: "a/b"}, vmm.Capabilities{Snapshot: true}, "", hostapi.ErrUnsupported},
		{"wake", want{op: "wake", image: "a/b", haveMiB: 10, kernel: true}, all, "wake disk=10MiB image=a/b", nil},
		{"wake-failed", want{op: "wake", haveMiB: 10, kernel: true}, none, "boot disk=10MiB", nil},
		{"wake-without-kernel", want{op: "wake", haveMiB: 10}, all, "", hostapi.ErrUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := choose(tc.want, tc.can)
			checkErr(t, err, tc.err)
			if err == nil && got.String() != tc.text {
				t.Errorf("start %q, want %q", got, tc.text)
			}
		})
	}
}
