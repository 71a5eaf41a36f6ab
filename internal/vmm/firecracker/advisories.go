package firecracker

import (
	"fmt"

	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// Severity says what this driver does about a known fault of a release.
type Severity string

// The severities.
const (
	Refused Severity = "refused" // the driver does not use the release
	Avoided Severity = "avoided" // the driver never does what triggers the fault
	Noted   Severity = "noted"   // the fault remains
)

// Advisory is a known fault of some releases.
type Advisory struct {
	Severity Severity
	Text     string
}

type versionedAdvisory struct {
	Advisory
	in func(v fcapi.Version) bool
}

func release(minor, patch int) fcapi.Version {
	return fcapi.Version{Major: 1, Minor: minor, Patch: patch}
}

// between returns a function that reports whether a release is at least from and older than to.
func between(from, to fcapi.Version) func(fcapi.Version) bool {
	return func(v fcapi.Version) bool { return v.Compare(from) >= 0 && v.Compare(to) < 0 }
}

var advisories = []versionedAdvisory{
	{
		Advisory{
			Refused,
			"it is older than 1.15.1: diff snapshots of more than 3 GiB or several memory slots are corrupt",
		},
		between(fcapi.Version{}, release(15, 0)),
	},
	{
		Advisory{
			Refused,
			"guest root can write out of bounds (CVE-2026-5747, only with PCI), and the release is not maintained",
		},
		between(release(15, 0), release(15, 1)),
	},
	{Advisory{Refused, "vsock connections to a restored guest fail"}, between(release(16, 0), release(16, 1))},
	{
		Advisory{
			Refused,
			"vsock connections to a guest fail after pause and resume, so machines could not be forked",
		},
		between(release(16, 1), release(17, 0)),
	},
	{
		Advisory{
			Noted,
			"IA32_XSS is not saved in snapshots: programs with control-flow enforcement may fail after a restore",
		},
		between(fcapi.Version{}, release(16, 1)),
	},
	{
		Advisory{Avoided, "CPU templates clear MSRs on hosts with Linux 6.18; the driver uses none"},
		between(fcapi.Version{}, release(17, 0)),
	},
	{
		Advisory{Avoided, "the kernel must be an ELF file, as the tuned kernel is"},
		between(fcapi.Version{}, release(17, 0)),
	},
}

// Advisories returns the known faults of a release, with the refused ones first.
func Advisories(v fcapi.Version) []Advisory {
	var all []Advisory
	for _, k := range advisories {
		if k.in(v) {
			all = append(all, k.Advisory)
		}
	}
	return all
}

// RefusedReleaseError reports that a release is not used, and why.
type RefusedReleaseError struct {
	Version fcapi.Version
	Why     string
}

// Error returns the reason and the releases that can be used.
func (e *RefusedReleaseError) Error() string {
	return fmt.Sprintf(
		"Firecracker %s is not used: %s; install 1.15.1 or a later 1.15, or 1.17 or newer",
		e.Version,
		e.Why,
	)
}

// CheckRelease returns a *RefusedReleaseError if this driver does not use the release.
func CheckRelease(v fcapi.Version) error {
	for _, f := range Advisories(v) {
		if f.Severity == Refused {
			return &RefusedReleaseError{v, f.Text}
		}
	}
	if v.Major != 1 {
		return &RefusedReleaseError{v, "only releases 1.x are supported"}
	}
	return nil
}

// checkJailerRelease returns an error if the jailer has a known vulnerability. It is separate from
// CheckRelease because a node may run without the jailer.
func checkJailerRelease(v fcapi.Version) error {
	if v.Compare(release(13, 2)) < 0 || v.Compare(release(14, 0)) == 0 {
		return fmt.Errorf("jailer %s follows symbolic links out of the jail (CVE-2026-1386)", v)
	}
	return nil
}
