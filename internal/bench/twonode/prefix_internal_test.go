package twonode

import (
	"testing"

	"github.com/pandastack/pandastack/internal/os/jail"
)

// TestPrefixes checks that the nodes of a pair share neither names nor user IDs with the measured node.
func TestPrefixes(t *testing.T) {
	for _, prefix := range []string{"panda", "p", "pand", "pandaa", "pandapaa", "pandapxa", "pandapxb", "bbbbbbbb"} {
		seen := map[string]bool{prefix: true}
		for _, name := range []string{"a", "b"} {
			got := prefixOf(prefix, name)
			if seen[got] || len(got) > longestPrefix {
				t.Errorf("prefixOf(%q, %q) = %q, want a new one of at most %d bytes", prefix, name, got, longestPrefix)
			}
			seen[got] = true
		}
	}
	uids := map[int]string{}
	for _, prefix := range []string{"panda", prefixOf("panda", "a"), prefixOf("panda", "b")} {
		m, err := jail.New(jail.Config{Hierarchy: jail.Hierarchy{Version: 2}, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		uid, _, err := m.User(0)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := uids[uid]; ok {
			t.Errorf("prefixes %q and %q have the same users from %d on", prefix, other, uid)
		}
		uids[uid] = prefix
	}
}
