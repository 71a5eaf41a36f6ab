package firecracker

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gotcha is a known pitfall of Firecracker. Either tests show that this driver avoids it, or the
// driver's code does not contain the words that lead to it.
type gotcha struct {
	what  string
	tests []string // "directory below internal: name"
	never []string // words that the driver and its client must not contain
}

var gotchas = []gotcha{
	// Releases.
	{
		"CVE-2026-5747: writes outside of memory with PCI",
		[]string{"vmm/firecracker: TestCheckRelease", "host/probe: TestFirecrackerRow"},
		[]string{"enable-pci"},
	},
	{"CVE-2026-1386: the jailer follows links", []string{"vmm/firecracker: TestCheckJailerRelease"}, nil},
	{
		"vsock dead after a restore with 1.16.0",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"vsock dead after pause and resume with 1.16",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"differences of memory damaged before 1.15",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"IA32_XSS not saved before 1.16.1",
		[]string{"vmm/firecracker: TestCheckRelease", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"CPU templates clear registers before 1.17",
		[]string{"host/probe: TestFirecrackerRow"},
		[]string{"cpu_template", "cpu-config"},
	},
	// The API.
	{"stale sockets", []string{"vmm/firecracker: TestLeftoverFiles", "vmm/vmmproc: TestSocketInLongDirectory"}, nil},
	{"socket addresses of 108 bytes", []string{"vmm/vmmproc: TestSocketInLongDirectory"}, nil},
	{
		"requests need a Content-Length, and GET has no body",
		[]string{"vmm/firecracker/fcapi: TestBodies", "vmm/firecracker: TestMachines"},
		nil,
	},
	{"unknown fields are refused", []string{"vmm/firecracker/fcapi: TestGates", "vmm/firecracker: TestMachines"}, nil},
	{"free page hinting has routes of its own and a race", nil, []string{"hinting"}},
	{
		"a console without bound fills the host's disk",
		[]string{"vmm/firecracker: TestBootRequests"},
		[]string{"/serial"},
	},
	{"metrics are not flushed while it is paused", nil, []string{"FlushMetrics"}},
	{
		"identity must be there before the first instruction",
		[]string{"vmm/vmmtest: testRestoreAtOnce", "vmm/firecracker: TestMetadataBeforeLoad"},
		nil,
	},
	{
		"metadata is refused before the network card that reaches it",
		[]string{"vmm/firecracker: TestBootRequests", "vmm/firecracker: TestMetadataBeforeLoad"},
		nil,
	},
	{"a failed load burns the process", []string{"vmm/firecracker: TestRequestFailures"}, nil},
	// Processes and the jailer.
	{
		"the jailer's control groups are of version 1 by default",
		[]string{"vmm/firecracker/fctest: TestJailerCommandLine", "vmm/firecracker: TestOfficialJailer"},
		nil,
	},
	{"the jailer refuses a remainder of its last start", []string{"vmm/firecracker: TestOfficialJailer"}, nil},
	{"a table of descriptors as large as its limit", []string{"os/jail: TestLimitsHold"}, nil},
	{
		"machines of one user",
		[]string{"os/jail: TestUIDs", "os/jail: TestUIDsOfTwoNodes", "os/jail: TestJailsAreIsolated"},
		nil,
	},
	{"exit codes stand for signals that the monitor caught", []string{"vmm/firecracker: TestDescribeExit"}, nil},
	{"a monitor that hangs answers nothing and must be killed", []string{"vmm/firecracker: TestMonitorHangs"}, nil},
	{
		"the end of a process takes long after its last word",
		[]string{"vmm/vmmproc: TestProcessExit", "vmm/firecracker: TestRequestFailures"},
		nil,
	},
	// Snapshots.
	{
		"load opens the drives that the snapshot names",
		[]string{"vmm/firecracker: TestLoadIsOneRequest", "vmm/firecracker: TestHotplugLimits"},
		nil,
	},
	{
		"a mapped memory file must not change",
		[]string{"vmm/firecracker: TestMachines", "vmm/firecracker: TestCaptureAfterAdopt"},
		nil,
	},
	{"a snapshot only of a guest that is ready", []string{"host/bake: TestFailingCheckFailsTheBake"}, nil},
	{"limits of rates are the snapshot's", []string{"vmm/firecracker: TestLoadIsOneRequest"}, nil},
	{
		"connections to a restored guest are refused at first",
		[]string{"vmm/firecracker: TestMachines", "vmm/firecracker: TestConnectPort"},
		nil,
	},
	{"the asynchronous engine makes restores slow", []string{"vmm/firecracker: TestBootRequests"}, []string{"Async"}},
	{
		"pages that were swapped out count as unchanged where writes are not followed",
		[]string{"vmm/firecracker: TestColdCapturesAreFull", "vmm/firecracker: TestHugePages"},
		nil,
	},
	{
		"the second of two snapshots without a resume between them may differ",
		[]string{"vmm/firecracker: TestCaptureTwice"},
		nil,
	},
	{
		"rates of a machine that is taken over are those of an earlier process",
		[]string{"vmm/firecracker: TestRatesAfterAdopt"},
		nil,
	},
	{
		"captures onto a file system that cannot share blocks take seconds",
		[]string{"os/disk: TestProbeLeavesNothing", "os/disk: TestCloneShares"},
		nil,
	},
	{"drives of other processes cannot be part of a snapshot", nil, []string{"vhost"}},
	{"a snapshot of another processor or release", []string{"vmm/vmmtest: testMismatch"}, nil},
	// Served memory.
	{"page_size_kib holds bytes", []string{"os/uffd: TestParseRegions"}, nil},
	{
		"removals are read before pages are copied",
		[]string{"os/uffd: TestRemoveEventBeforeCopy", "host/pager: TestRemovedMemoryIsZero"},
		nil,
	},
	{"a handshake with none or several descriptors", []string{"os/uffd: TestReceiveRefuses"}, nil},
	{"large pages must be copied whole", []string{"os/uffd: TestHugePages"}, nil},
	{
		"memory is used before load has answered",
		[]string{"vmm/firecracker: TestPager", "vmm/firecracker: TestHosts"},
		nil,
	},
	{
		"a pager that ends leaves a guest that hangs",
		[]string{"vmm/firecracker: TestPager", "vmm/firecracker: TestPagedMachineIsNotAdopted"},
		nil,
	},
	// The host, and the guest's network, clock and kernel.
	{
		"a guest without a driver gives no memory back, takes none, and repeats the random numbers of others",
		[]string{"image/kernel: TestGuestsHaveTheirDevices"},
		nil,
	},
	{
		"a tap with another address than the guest remembers",
		[]string{"os/netslot: TestReusedSlotRemembersNothing"},
		nil,
	},
	{"the clock stands at the time of the snapshot", []string{"vmm/vmmtest: testClock"}, []string{"clock_realtime"}},
}

// TestGotchas checks that the named tests exist and that the forbidden words do not occur.
func TestGotchas(t *testing.T) {
	code := sources(
		t,
		[]string{".", "fcapi"},
		func(name string) bool { return !strings.HasSuffix(name, "_test.go") && name != "advisories.go" },
	)
	tests := map[string]string{}
	for _, g := range gotchas {
		if len(g.tests)+len(g.never) == 0 {
			t.Errorf("%s: no test and no forbidden word is named", g.what)
		}
		for _, word := range g.never {
			if strings.Contains(code, word) {
				t.Errorf("%s: the driver contains %q, want it absent", g.what, word)
			}
		}
		for _, test := range g.tests {
			dir, name, _ := strings.Cut(test, ": ")
			if tests[dir] == "" {
				tests[dir] = sources(t, []string{filepath.Join("../..", dir)}, func(string) bool { return true })
			}
			if !strings.Contains(tests[dir], "func "+name) && !strings.Contains(tests[dir], `"`+name+`"`) {
				t.Errorf("%s: test %s does not exist", g.what, test)
			}
		}
	}
}

// sources returns the text of Go files without comment lines.
func sources(t *testing.T, dirs []string, want func(name string) bool) string {
	t.Helper()
	var all strings.Builder
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got Go files %v, %v; want some", dir, files, err)
		}
		for _, path := range files {
			if !want(filepath.Base(path)) || filepath.Base(path) == "gotcha_test.go" {
				continue
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(data)) {
				if !strings.HasPrefix(strings.TrimSpace(line), "//") {
					all.WriteString(line)
				}
			}
		}
	}
	return all.String()
}
