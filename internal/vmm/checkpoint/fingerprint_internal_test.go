package checkpoint

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const twoCPUs = "processor\t: 0\nvendor_id\t: A\nmodel\t\t: 1\nflags\t\t: avx sse\ncpu MHz\t\t: 1.5\n\n" +
	"processor\t: 1\nvendor_id\t: A\nmodel\t\t: 1\nflags\t\t: avx sse\ncpu MHz\t\t: 2.5\n\n"

// TestFingerprint checks that the fingerprint covers what programs depend on, and nothing that
// changes over time.
func TestFingerprint(t *testing.T) {
	var name unix.Utsname
	copy(name.Release[:], "6.1")
	want := fingerprint(name, []byte("code"), twoCPUs)
	if got := fingerprint(name, []byte("code"), strings.ReplaceAll(twoCPUs, ".5", ".7")); got != want {
		t.Error("the fingerprint depends on the current clock rate")
	}
	if got := fingerprint(name, []byte("code"), twoCPUs[:len(twoCPUs)/2]); got != want {
		t.Error("the fingerprint depends on the number of processors")
	}
	other := name
	copy(other.Version[:], "#2")
	for what, got := range map[string]string{
		"kernel": fingerprint(other, []byte("code"), twoCPUs), "code": fingerprint(name, []byte("edoc"), twoCPUs),
		"features": fingerprint(name, []byte("code"), strings.ReplaceAll(twoCPUs, "avx ", "")),
		"model":    fingerprint(name, []byte("code"), strings.ReplaceAll(twoCPUs, ": 1\nflags", ": 2\nflags")),
	} {
		if got == want {
			t.Errorf("the fingerprint does not depend on the %s", what)
		}
	}
	one, err := Fingerprint()
	if err != nil {
		t.Fatal(err)
	}
	if two, err := Fingerprint(); err != nil || one != two || len(one) != 64 {
		t.Errorf("Fingerprint() = %q and then %q, %v; want the same hash", one, two, err)
	}
}
