package probe_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
)

// Files of the kernel that the rows are made of.
const (
	osRelease = "proc/sys/kernel/osrelease"
	cpuInfo   = "proc/cpuinfo"
	faults    = "sys/devices/system/cpu/vulnerabilities/"
	itlb      = faults + "itlb_multihit"
	smtActive = "sys/devices/system/cpu/smt/active"
	nxPages   = "sys/module/kvm/parameters/nx_huge_pages"
	intel     = "sys/module/kvm_intel/parameters/nested"
	amd       = "sys/module/kvm_amd/parameters/nested"
)

// system writes files of /proc and /sys below a directory.
func system(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

type files map[string]string

func TestProcessorRows(t *testing.T) {
	const debian = "Linux version 6.1.0-14-amd64 (x) #1 SMP PREEMPT_DYNAMIC Debian "
	for name, r := range map[string]struct {
		row   string
		files files
		level probe.Level
		words string
	}{
		"kernel too old":        {probe.HostKernel, files{osRelease: "5.10.200-1"}, probe.Fail, "too old"},
		"kernel of two numbers": {probe.HostKernel, files{osRelease: "4.19"}, probe.Fail, "4.19.0"},
		"kernel not tested":     {probe.HostKernel, files{osRelease: "5.15.160"}, probe.Warn, "6.1 and newer"},
		"kernel good": {
			probe.HostKernel,
			files{osRelease: "6.18.44-custom"},
			probe.OK,
			"Linux 6.18.44",
		},
		"kernel first with fault": {
			probe.HostKernel,
			files{osRelease: "6.1.64"},
			probe.Warn,
			"fixed in 6.1.66: ext4",
		},
		"kernel last with fault":  {probe.HostKernel, files{osRelease: "6.3.4-rc1"}, probe.Warn, "XFS"},
		"kernel mended":           {probe.HostKernel, files{osRelease: "6.1.66"}, probe.OK, "6.1.66"},
		"kernel before the fault": {probe.HostKernel, files{osRelease: "6.1.63"}, probe.OK, "6.1.63"},
		"kernel dirty pipe":       {probe.HostKernel, files{osRelease: "5.15.24"}, probe.Warn, "CVE-2022-0847"},
		"kernel Debian faulty": {
			probe.HostKernel,
			files{osRelease: "6.1.0-14-amd64", "proc/version": debian + "6.1.64-1 (2023-11-30)"},
			probe.Warn,
			"6.1.64 has a known fault",
		},
		"kernel Debian fixed": {
			probe.HostKernel,
			files{osRelease: "6.1.0-15-amd64", "proc/version": debian + "6.1.66-1"},
			probe.OK,
			"6.1.66",
		},
		"kernel Ubuntu": {
			probe.HostKernel,
			files{osRelease: "5.15.0-20-generic", "proc/version_signature": "Ubuntu 5.15.0-20.20-generic 5.15.24"},
			probe.Warn,
			"5.15.24 has a known fault",
		},
		"kernel of another distribution": {
			probe.HostKernel,
			files{osRelease: "6.3.0-4.el9", "proc/version": "Linux version 6.3.0"},
			probe.OK,
			"does not say",
		},
		"kernel unknown": {probe.HostKernel, files{}, probe.Warn, "unknown"},
		"kernel invalid": {
			probe.HostKernel,
			files{osRelease: "99999999999999999999.1"},
			probe.Warn,
			"unknown",
		},

		"nested on intel": {probe.Nested, files{intel: "Y"}, probe.Warn, "guests of their own"},
		"nested on amd":   {probe.Nested, files{amd: "1"}, probe.Warn, "guests of their own"},
		"nested off":      {probe.Nested, files{amd: "0"}, probe.OK, "kvm_amd"},
		"nested host": {
			probe.Nested,
			files{intel: "N", cpuInfo: "flags\t\t: fpu hypervisor lahf_lm"},
			probe.Warn,
			"virtual machine itself",
		},
		"nested both": {
			probe.Nested,
			files{intel: "Y", cpuInfo: "flags\t\t: fpu hypervisor"},
			probe.Warn,
			"; guests may run",
		},
		"nested host, no KVM": {
			probe.Nested,
			files{cpuInfo: "flags : hypervisor"},
			probe.OK,
			"without virtualization",
		},
		"nested, not the flag": {
			probe.Nested,
			files{intel: "N", cpuInfo: "flags : hypervisory"},
			probe.OK,
			"kvm_intel",
		},
		"nested nothing": {probe.Nested, files{}, probe.OK, "no module"},

		"faults open": {probe.CPUFaults, files{
			faults + "mds":  "Vulnerable: Clear CPU buffers attempted, no microcode",
			faults + "l1tf": "Mitigation: PTE Inversion",
		},
			probe.Warn, "not mitigated: mds (Vulnerable: Clear CPU buffers attempted, no microcode)"},
		"faults two": {
			probe.CPUFaults,
			files{faults + "mds": "Vulnerable", faults + "l1tf": "Vulnerable"},
			probe.Warn,
			"l1tf (Vulnerable), mds (Vulnerable)",
		},
		"faults KVM": {probe.CPUFaults, files{itlb: "KVM: Vulnerable"}, probe.Warn, "itlb_multihit (KVM: Vulnerable)"},
		"faults mitigated": {probe.CPUFaults, files{itlb: "KVM: Mitigation: Split huge " +
			"pages", faults + "mds": "Not affected",
			faults + "retbleed": "Mitigation: untrained return thunk; SMT vulnerable"}, probe.OK, "none of 3"},
		"faults unknown": {probe.CPUFaults, files{}, probe.Warn, "unknown"},

		"smt on":      {probe.SMT, files{smtActive: "1"}, probe.Warn, "one core"},
		"smt off":     {probe.SMT, files{smtActive: "0"}, probe.OK, "no core"},
		"smt unknown": {probe.SMT, files{}, probe.OK, "does not report"},

		"nx not needed": {
			probe.NXPages,
			files{nxPages: "Y", itlb: "Not affected"},
			probe.Warn,
			"does not need it",
		},
		"nx needed": {
			probe.NXPages,
			files{nxPages: "N", itlb: "KVM: Vulnerable"},
			probe.Warn,
			"halt this host",
		},
		"nx never, needed": {
			probe.NXPages,
			files{nxPages: "never", itlb: "KVM: Vulnerable"},
			probe.Warn,
			"halt this host",
		},
		"nx on, needed": {
			probe.NXPages,
			files{nxPages: "Y", itlb: "KVM: Mitigation: Split huge pages"},
			probe.OK,
			"needs it",
		},
		"nx off, not needed": {probe.NXPages, files{nxPages: "never", itlb: "Not affected"}, probe.OK, "never"},
		"nx without KVM":     {probe.NXPages, files{itlb: "Not affected"}, probe.OK, "not loaded"},
	} {
		list, err := probe.Find(probe.All(probe.Config{}.On(system(t, r.files))), r.row)
		if err != nil {
			t.Fatal(err)
		}
		f := list[0].Run(t.Context())
		if f.Level != r.level || !strings.Contains(f.Text, r.words) || (f.Level == probe.OK) != (f.Fix == "") {
			t.Errorf("%s: got %+v, want %s with %q", name, f, r.level, r.words)
		}
	}
}
