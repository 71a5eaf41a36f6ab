package machine

import (
	"fmt"
	"slices"
	"testing"
)

// TestStatePairs compares the transitions between all pairs of states with those that operations need.
func TestStatePairs(t *testing.T) {
	want := []string{
		"creating>destroying", "creating>running",
		"failed>destroying", "failed>waking",
		"hibernated>destroying", "hibernated>failed", "hibernated>waking",
		"hibernating>destroying", "hibernating>failed", "hibernating>hibernated", "hibernating>paused",
		"hibernating>running",
		"paused>destroying", "paused>failed", "paused>hibernating", "paused>running",
		"running>destroying", "running>failed", "running>hibernated", "running>hibernating", "running>paused",
		"waking>destroying", "waking>failed", "waking>hibernated", "waking>running",
	}
	var got []string
	for from := range transitions {
		if _, ok := publicState[from]; !ok {
			t.Errorf("publicState[%s] is missing", from)
		}
		for to := range transitions {
			if !from.canBecome(from) {
				t.Errorf("%s.canBecome(%s) = false, want true", from, from)
			}
			if from != to && from.canBecome(to) {
				got = append(got, fmt.Sprintf("%s>%s", from, to))
			}
		}
		if from != destroying && !from.canBecome(destroying) {
			t.Errorf("%s.canBecome(destroying) = false, want true", from)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got transitions\n%v\nwant\n%v", got, want)
	}
	if len(publicState) != len(transitions) {
		t.Errorf("got a public state for %d states, want one for each of %d", len(publicState), len(transitions))
	}
}
