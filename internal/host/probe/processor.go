package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// read returns a file of the kernel without surrounding white space; "" if it does not exist.
func (c Config) read(path string) string {
	text, err := os.ReadFile(filepath.Join("/", c.system, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// isSet reports whether a boolean parameter of a kernel module is set.
func isSet(parameter string) bool { return parameter == "Y" || parameter == "1" }

// release is a version of Linux: three numbers, the last within a stable line.
type release [3]int

func (r release) String() string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

func (r release) before(other release) bool { return slices.Compare(r[:], other[:]) < 0 }

var (
	releaseNumbers = regexp.MustCompile(`^(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?`)
	// ownNumbers matches versions of distributions that keep 0 as the third number and count after it.
	ownNumbers = regexp.MustCompile(`^\d+\.\d+\.0-\d`)
	// debianNumbers matches the stable release in Debian's version.
	debianNumbers = regexp.MustCompile(`Debian (\d+\.\d+\.\d+)`)
)

// parseRelease parses the numbers at the beginning of a version.
func parseRelease(text string) (release, bool) {
	m := releaseNumbers.FindStringSubmatch(text)
	if m == nil {
		return release{}, false
	}
	var r release
	for i := range r {
		r[i], _ = strconv.Atoi(m[i+1]) // digits by the expression, or nothing, which is 0
	}
	return r, true
}

// exactRelease returns the version of the running kernel. It is not exact if the distribution has its own numbers and
// does not state the stable release.
func (c Config) exactRelease() (r release, exact, known bool) {
	text := c.read("proc/sys/kernel/osrelease")
	if r, known = parseRelease(text); !known || !ownNumbers.MatchString(text) {
		return r, known, known
	}
	if m := debianNumbers.FindStringSubmatch(c.read("proc/version")); m != nil {
		r, known = parseRelease(m[1])
		return r, known, known
	}
	// Ubuntu: its own version, then the stable one.
	if fields := strings.Fields(c.read("proc/version_signature")); len(fields) > 0 {
		if stable, ok := parseRelease(fields[len(fields)-1]); ok {
			return stable, true, true
		}
	}
	return r, false, true
}

// hostKernelFault is a fault of Linux that matters to a host of sandboxes.
type hostKernelFault struct {
	from, fixed release // of one stable line: from is the first release with the fault
	text        string
}

const dirtyPipe = "CVE-2022-0847: a guest that breaks out into its monitor can write to read-only files, " +
	"such as a template's memory"

var hostKernelFaults = []hostKernelFault{
	{release{5, 8, 0}, release{5, 10, 102}, dirtyPipe},
	{release{5, 11, 0}, release{5, 15, 25}, dirtyPipe},
	{release{5, 16, 0}, release{5, 16, 11}, dirtyPipe},
	{release{6, 1, 64}, release{6, 1, 66}, "ext4 damages files that are written around the page cache"},
	{release{6, 3, 0}, release{6, 3, 5}, "XFS damages its own metadata"},
}

// oldestKernel is the oldest kernel with all system calls that jails need (mount_setattr); goodKernel begins the
// oldest line that is tested with KVM and Firecracker.
var (
	oldestKernel = release{5, 12, 0}
	goodKernel   = release{6, 1, 0}
)

func (c Config) hostKernel(context.Context) Finding {
	const fix = "install a newer kernel of the distribution and restart the machine"
	r, exact, known := c.exactRelease()
	if !known {
		return warn("mount /proc", "the kernel's version is unknown")
	}
	if r.before(oldestKernel) {
		return fail(fix, "Linux %v is too old: jails need the system calls of %d.%d", r, oldestKernel[0],
			oldestKernel[1])
	}
	if exact {
		for _, f := range hostKernelFaults {
			if !r.before(f.from) && r.before(f.fixed) {
				return warn(fix, "Linux %v has a known fault, fixed in %v: %s", r, f.fixed, f.text)
			}
		}
	}
	if r.before(goodKernel) {
		return warn(fix, "Linux %v works; %d.%d and newer are tested", r, goodKernel[0], goodKernel[1])
	}
	if !exact {
		return ok(
			"Linux %s; the distribution does not say which stable release it contains",
			c.read("proc/sys/kernel/osrelease"),
		)
	}
	return ok("Linux %v", r)
}

// nested checks for a hypervisor below this host and for virtual machines inside of its guests.
func (c Config) nested(context.Context) Finding {
	module := ""
	for _, m := range []string{"kvm_intel", "kvm_amd"} {
		if _, err := os.Stat(filepath.Join("/", c.system, "sys/module", m)); err == nil {
			module = m
		}
	}
	inside := slices.Contains(strings.Fields(firstFlags(c.read("proc/cpuinfo"))), "hypervisor")
	var wrong, fix []string
	if module != "" && inside {
		wrong = append(
			wrong,
			"this host is a virtual machine itself: each exit and page fault of a guest goes through two hypervisors, "+
				"so restores and first accesses take several times as long",
		)
		fix = append(fix, "use a machine without a hypervisor if speed matters")
	}
	if module != "" && isSet(c.read("sys/module/"+module+"/parameters/nested")) {
		wrong = append(
			wrong,
			"guests may run guests of their own, which exposes the most complex part of the host's KVM to them",
		)
		fix = append(
			fix,
			fmt.Sprintf(
				"unless sandboxes need KVM: write `options %s nested=0` into a file in /etc/modprobe.d, "+
					"and reload the module",
				module,
			),
		)
	}
	switch {
	case len(wrong) > 0:
		return warn(strings.Join(fix, "; "), "%s", strings.Join(wrong, "; "))
	case module != "":
		return ok("%s, without guests inside of guests", module)
	case inside:
		return ok("this host is a virtual machine without virtualization of its own")
	}
	return ok("no module of KVM for this processor is loaded")
}

// processorFaults checks the processor faults that the kernel reports.
func (c Config) processorFaults(context.Context) Finding {
	const dir = "sys/devices/system/cpu/vulnerabilities"
	entries, err := os.ReadDir(filepath.Join("/", c.system, dir))
	if err != nil {
		return warn("mount /sys, with a kernel that knows the processor's faults",
			"the processor's faults are unknown: %v", err)
	}
	var wrong []string
	for _, e := range entries {
		// Most begin with "Vulnerable"; the one of huge pages begins with "KVM: Vulnerable".
		if text := c.read(filepath.Join(dir, e.Name())); strings.HasPrefix(
			strings.TrimPrefix(text, "KVM: "),
			"Vulnerable",
		) {
			wrong = append(wrong, fmt.Sprintf("%s (%s)", e.Name(), text))
		}
	}
	if len(wrong) > 0 {
		return warn(
			"install the distribution's microcode package and newest kernel, and boot without mitigations=off; "+
				"on a virtual machine this is up to its provider",
			"guests may read memory of others; not mitigated: %s",
			strings.Join(wrong, ", "),
		)
	}
	return ok("none of %d known faults is open", len(entries))
}

func (c Config) smt(context.Context) Finding {
	switch active := c.read("sys/devices/system/cpu/smt/active"); active {
	case "1":
		return warn(
			"if guests do not trust one another: echo off > /sys/devices/system/cpu/smt/control, "+
				"and nosmt on the kernel command line",
			"two guests may run on the threads of one core at the same time, and observe each other through its caches",
		)
	case "0":
		return ok("no core runs two threads")
	default:
		return ok("the kernel does not report cores with two threads")
	}
}

// noExecutePages checks KVM's protection against itlb_multihit, a fault by which a guest can halt its host.
func (c Config) noExecutePages(context.Context) Finding {
	parameter := c.read("sys/module/kvm/parameters/nx_huge_pages")
	fault := c.read("sys/devices/system/cpu/vulnerabilities/itlb_multihit")
	safe := strings.HasPrefix(fault, "Not affected")
	switch on := isSet(parameter); {
	case parameter == "":
		return ok("KVM is not loaded, or not for this processor")
	case on && safe:
		return warn(
			"write `options kvm nx_huge_pages=never` into a file in /etc/modprobe.d, and reload the module",
			"KVM splits huge pages that guests run code from, which makes them slower, and starts a thread with each "+
				"machine; this processor does not need it",
		)
	case !on && !safe && fault != "":
		return warn(
			"echo Y > /sys/module/kvm/parameters/nx_huge_pages",
			"KVM maps huge pages that guests may run code from, by which a guest can halt this host: "+
				"itlb_multihit is %q",
			fault,
		)
	case on:
		return ok("split if guests run code from them, as this processor needs it")
	}
	return ok("%s, and not needed by this processor", parameter)
}
