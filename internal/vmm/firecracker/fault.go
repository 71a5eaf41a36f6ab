package firecracker

import (
	"fmt"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// Weight is how much a known fault of a release matters to this driver.
type Weight string

// The weights of faults.
const (
	Refused Weight = "refused" // the driver does not use the release
	Avoided Weight = "avoided" // the driver never does what leads to it
	Noted   Weight = "noted"   // it remains
)

// Fault is something known to be wrong in a release.
type Fault struct {
	Weight Weight
	Text   string
}

type known struct {
	Fault
	in func(v fcapi.Version) bool
}

func at(minor, patch int) fcapi.Version { return fcapi.Version{Major: 1, Minor: minor, Patch: patch} }

// between tells whether a release is from (with it) to (without it).
func between(from, to fcapi.Version) func(fcapi.Version) bool {
	return func(v fcapi.Version) bool { return v.Compare(from) >= 0 && v.Compare(to) < 0 }
}

var faults = []known{
	{
		Fault{
			Refused,
			"it is older than 1.15.1: differences of memory over 3 GiB or of several pieces are written wrong",
		},
		between(fcapi.Version{}, at(15, 0)),
	},
	{
		Fault{
			Refused,
			"a root user of a guest can write outside its memory (CVE-2026-5747, only with PCI) and it is not maintained",
		},
		between(at(15, 0), at(15, 1)),
	},
	{Fault{Refused, "the host cannot reach a guest any more that was restored"}, between(at(16, 0), at(16, 1))},
	{
		Fault{
			Refused,
			"the host cannot reach a guest any more that was paused and resumed, so nothing could be forked",
		},
		between(at(16, 1), at(17, 0)),
	},
	{
		Fault{
			Noted,
			"the state of IA32_XSS is not part of snapshots: programs that use control-flow enforcement may fail after a restore",
		},
		between(fcapi.Version{}, at(16, 1)),
	},
	{
		Fault{Avoided, "CPU templates clear registers on hosts with Linux 6.18; none is used"},
		between(fcapi.Version{}, at(17, 0)),
	},
	{Fault{Avoided, "the kernel must be an ELF file; the tuned one is"}, between(fcapi.Version{}, at(17, 0))},
}

// Faults answers what is known to be wrong in a release, the worst first.
func Faults(v fcapi.Version) []Fault {
	var all []Fault
	for _, k := range faults {
		if k.in(v) {
			all = append(all, k.Fault)
		}
	}
	return all
}

// FaultyError says that a release is not used, and why.
type FaultyError struct {
	Version fcapi.Version
	Why     string
}

func (e *FaultyError) Error() string {
	return fmt.Sprintf(
		"Firecracker %s is not used: %s; install 1.15.1 or a later 1.15, or 1.17 or newer",
		e.Version,
		e.Why,
	)
}

// Usable answers a *FaultyError for a release that this driver does not use.
func Usable(v fcapi.Version) error {
	for _, f := range Faults(v) {
		if f.Weight == Refused {
			return &FaultyError{v, f.Text}
		}
	}
	if v.Major != 1 {
		return &FaultyError{v, "only releases 1.x are known"}
	}
	return nil
}

// jailerFault is the fault of the official jailer, which a node can do without.
func jailerFault(v fcapi.Version) error {
	if v.Compare(at(13, 2)) < 0 || v.Compare(at(14, 0)) == 0 {
		return fmt.Errorf("jailer %s follows symbolic links out of the jail (CVE-2026-1386)", v)
	}
	return nil
}
