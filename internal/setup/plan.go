// Package setup prepares a machine for sandboxes: packages, data directory, guest kernel.
//
// It owns the plan, a pure function of the facts, and the steps that carry it out. A step does nothing if its work is
// done already, and undoes its changes when it fails, so setup can be run again at any time. Remove removes what
// setup made, except packages, which other programs may use. Mirrors come from the machine's own package sources.
//
// One setup runs at a time on a machine; the package manager's lock ensures it where it matters.
package setup

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Kernels that Config.Kernel may name.
const (
	KernelDistribution = "distribution" // the unchanged cloud kernel; nothing is compiled
	KernelTuned        = "tuned"        // compiled from the distribution's source; takes minutes
)

// Config is the wanted state of the machine.
type Config struct {
	DataDir  string
	ImageGiB int    // size of the data directory's sparse XFS image, if one is needed
	Kernel   string // KernelDistribution (also when empty) or KernelTuned
	Bench    bool   // also what the benchmark compares with
}

// Facts are the inputs of the plan, as Inspect finds them.
type Facts struct {
	Root         bool
	Debian       bool
	Distribution string   // for display: "Debian GNU/Linux 12 (bookworm)"
	Codename     string   // "bookworm"
	Missing      []string // needed packages that are not installed, without QEMU
	QEMUMajor    int      // of the installed QEMU; 0: none
	Backports    bool     // the release's backports are among the package sources
	HasLists     bool     // package lists have been fetched
	DataExists   bool
	Reflink      bool // the data directory can clone files
	Image        bool // an XFS image exists beside the data directory
	Mounted      bool
	Kernel       string // installed distribution kernel; empty: none, or damaged
	Tuned        string // installed tuned kernel; empty: none, or damaged
	BuildMissing []string
	BenchMissing []string
}

// Kind is the kind of a step.
type Kind string

// Kinds of steps, in their order.
const (
	AddBackports  Kind = "backports"
	UpdateLists   Kind = "update"
	Packages      Kind = "packages"
	InstallQEMU   Kind = "qemu"
	MakeDirectory Kind = "directory"
	MakeImage     Kind = "image"
	MountImage    Kind = "mount"
	InstallKernel Kind = "kernel"
	BuildKernel   Kind = "build-kernel"
)

// Step is one step of a plan.
type Step struct {
	Kind     Kind
	Text     string   // for display, in the imperative
	Packages []string // of Packages
}

// UnsupportedError reports programs that setup cannot install on this distribution.
type UnsupportedError struct {
	Distribution string
	Missing      []string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf(
		"this is %s, and setup installs packages on Debian only; install these programs by hand and run setup again: "+
			"%s",
		e.Distribution,
		strings.Join(e.Missing, ", "),
	)
}

// NotRootError reports that the plan has steps, which need root.
type NotRootError struct{ Steps int }

// Error implements error.
func (e *NotRootError) Error() string {
	return fmt.Sprintf("setup has %d steps to do and needs root for them; run it with sudo", e.Steps)
}

// oldQEMU are the releases of Debian whose own QEMU is older than 10, and whose backports have a newer one.
var oldQEMU = []string{"bookworm"}

// wantQEMU is the oldest QEMU that setup keeps if a newer one is available.
const wantQEMU = 10

// Plan returns the steps to do, in order; none if the machine is ready. It returns an error if setup cannot help.
func Plan(c Config, f Facts) ([]Step, error) {
	var steps []Step
	qemu := f.QEMUMajor == 0 || f.QEMUMajor < wantQEMU && slices.Contains(oldQEMU, f.Codename)
	missing := slices.Clone(f.Missing)
	if c.Kernel == KernelTuned && f.Tuned == "" {
		missing = append(missing, f.BuildMissing...)
	}
	if c.Bench {
		missing = append(missing, f.BenchMissing...)
	}
	kernel := f.Kernel == "" && f.Tuned == "" && c.Kernel != KernelTuned
	build := f.Tuned == "" && c.Kernel == KernelTuned
	if !f.Debian {
		if qemu && f.QEMUMajor == 0 {
			missing = append(missing, qemuPackage())
		}
		if kernel {
			missing = append(missing, "a guest kernel in "+c.DataDir+"/kernel (`make kernel` on Debian builds one)")
		}
		if len(missing) > 0 || build {
			return nil, &UnsupportedError{Distribution: f.Distribution, Missing: missing}
		}
		qemu = false
	}
	backports := qemu && !f.Backports && slices.Contains(oldQEMU, f.Codename)
	if backports {
		steps = append(
			steps,
			Step{
				Kind: AddBackports,
				Text: "add " + f.Codename + "-backports to the package sources (" + backportsFile +
					", with the mirror in use) and fetch the lists",
			},
		)
	} else if len(missing) > 0 || qemu || !f.HasLists && (kernel || build) {
		// Adding a source fetches the lists too. Existing lists may be too old to install from.
		steps = append(steps, Step{Kind: UpdateLists, Text: "fetch the package lists"})
	}
	if len(missing) > 0 {
		steps = append(steps, Step{Kind: Packages, Text: "install " + strings.Join(missing, ", "), Packages: missing})
	}
	if qemu {
		steps = append(steps, Step{Kind: InstallQEMU, Text: "install QEMU (" + qemuPackage() + ")"})
	}
	steps = append(steps, planData(c, f)...)
	if kernel {
		steps = append(
			steps,
			Step{
				Kind: InstallKernel,
				Text: "fetch the distribution's cloud kernel for guests (it is not installed on this machine)",
			},
		)
	}
	if build {
		steps = append(
			steps,
			Step{Kind: BuildKernel, Text: "build the tuned guest kernel from the distribution's source (some minutes)"},
		)
	}
	if len(steps) > 0 && !f.Root {
		return nil, &NotRootError{Steps: len(steps)}
	}
	return steps, nil
}

func planData(c Config, f Facts) []Step {
	switch {
	case f.Image && !f.Mounted:
		return []Step{{Kind: MountImage, Text: "mount the XFS image of " + c.DataDir}}
	case f.Reflink && f.DataExists:
		return nil
	case f.Reflink:
		return []Step{{Kind: MakeDirectory, Text: "make the data directory " + c.DataDir}}
	}
	return []Step{
		{
			Kind: MakeImage,
			Text: fmt.Sprintf(
				"make a sparse XFS image of %d GiB for %s and mount it there: its file system cannot clone files",
				c.ImageGiB,
				c.DataDir,
			),
		},
	}
}

func qemuPackage() string {
	if runtime.GOARCH == "arm64" {
		return "qemu-system-arm"
	}
	return "qemu-system-x86"
}
