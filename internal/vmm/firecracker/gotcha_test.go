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
		"CVE-2026-5747: out-of-bounds writes with PCI",
		[]string{"vmm/firecracker: TestCheckRelease", "host/probe: TestFirecrackerRow"},
		[]string{"enable-pci"},
	},
	{"CVE-2026-1386: the jailer follows symbolic links", []string{"vmm/firecracker: TestCheckJailerRelease"}, nil},
	{
		"vsock connections fail after a restore with 1.16.0",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"vsock connections fail after pause and resume with 1.16",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"diff snapshots are corrupt before 1.15",
		[]string{"vmm/firecracker: TestRefusedReleases", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"IA32_XSS is not saved before 1.16.1",
		[]string{"vmm/firecracker: TestCheckRelease", "host/probe: TestFirecrackerRow"},
		nil,
	},
	{
		"CPU templates clear MSRs before 1.17",
		[]string{"host/probe: TestFirecrackerRow"},
		[]string{"cpu_template", "cpu-config"},
	},
	// The API.
	{"binding a socket fails if a stale one exists",
		[]string{"vmm/firecracker: TestLeftoverFiles", "vmm/vmmproc: TestSocketInLongDirectory"}, nil},
	{"socket addresses have at most 108 bytes", []string{"vmm/vmmproc: TestSocketInLongDirectory"}, nil},
	{
		"requests need a Content-Length, and GET must have no body",
		[]string{"vmm/firecracker/fcapi: TestBodies", "vmm/firecracker: TestMachines"},
		nil,
	},
	{"unknown fields are refused", []string{"vmm/firecracker/fcapi: TestGates", "vmm/firecracker: TestMachines"}, nil},
	{
		"a request over 51200 bytes is refused, and its rest is parsed as requests",
		[]string{"vmm/firecracker/fcapi: TestTooLarge", "vmm/firecracker/fctest: TestRules"},
		nil,
	},
	{
		"a balloon and hotplugged memory answer 400 until the guest's driver is active",
		[]string{"vmm/firecracker: TestInactiveDevices", "vmm/firecracker/fctest: TestActiveDevices"},
		nil,
	},
	{
		"a request right after a failed load may abort the process",
		[]string{"vmm/firecracker: TestRequestFailures", "vmm/firecracker/fctest: TestLoadRules"},
		nil,
	},
	{"free page hinting has its own routes and a race", nil, []string{"hinting"}},
	{
		"an unbounded console fills the host's disk",
		[]string{"vmm/firecracker: TestBootRequests"},
		[]string{"/serial"},
	},
	{"metrics are not flushed while the machine is paused", nil, []string{"FlushMetrics"}},
	{
		"metadata must be set before the first instruction",
		[]string{"vmm/vmmtest: testRestoreAtOnce", "vmm/firecracker: TestMetadataBeforeLoad"},
		nil,
	},
	{
		"the metadata service needs its network interface first",
		[]string{"vmm/firecracker: TestBootRequests", "vmm/firecracker: TestMetadataBeforeLoad"},
		nil,
	},
	{"a process is of no use after a failed load", []string{"vmm/firecracker: TestRequestFailures"}, nil},
	// Processes and the jailer.
	{
		"the jailer moves a monitor into a cgroup with the program's name if it runs with --cgroup-version 2",
		[]string{"vmm/firecracker/fctest: TestJailerCommandLine", "vmm/firecracker: TestOfficialJailer"},
		[]string{"cgroup-version"},
	},
	{
		"the jailer names its directory after the target of a symbolic link",
		[]string{"vmm/firecracker: TestOfficialJailer"},
		nil,
	},
	{
		"the jailer copies only the program and not its libraries",
		[]string{"host/probe: TestDynamicProgram"},
		nil,
	},
	{"the jailer refuses leftovers of its last start", []string{"vmm/firecracker: TestOfficialJailer"}, nil},
	{"the descriptor table grows to RLIMIT_NOFILE at the start", []string{"os/jail: TestLimitsHold"}, nil},
	{
		"machines with the same user ID can reach each other",
		[]string{"os/jail: TestUIDs", "os/jail: TestUIDsOfTwoNodes", "os/jail: TestJailsAreIsolated"},
		nil,
	},
	{"exit codes stand for caught signals", []string{"vmm/firecracker: TestDescribeExit"}, nil},
	{"a hanging monitor never responds and must be killed", []string{"vmm/firecracker: TestMonitorHangs"}, nil},
	{
		"a process exits long after its last response",
		[]string{"vmm/vmmproc: TestProcessExit", "vmm/firecracker: TestRequestFailures"},
		nil,
	},
	// Snapshots.
	{
		"a load opens the drives at the paths in the snapshot",
		[]string{"vmm/firecracker: TestLoadIsOneRequest", "vmm/firecracker: TestHotplugLimits"},
		nil,
	},
	{
		"a mapped memory file must not be modified",
		[]string{"vmm/firecracker: TestMachines", "vmm/firecracker: TestCaptureAfterAdopt"},
		nil,
	},
	{"a snapshot must be taken only of a ready guest", []string{"host/bake: TestFailingCheckFailsTheBake"}, nil},
	{"a restored machine has the rate limits of the snapshot", []string{"vmm/firecracker: TestLoadIsOneRequest"}, nil},
	{
		"connections to a restored guest are refused at first",
		[]string{"vmm/firecracker: TestMachines", "vmm/firecracker: TestConnectPort"},
		nil,
	},
	{
		"a connection to a captured or restored guest may open and then die before 1.16",
		[]string{"vmm/firecracker: TestChannelSendsAgain", "vmm/firecracker: TestMachines",
			"vmm/firecracker/fctest: TestDeadConnection"},
		nil,
	},
	{"the asynchronous I/O engine slows down restores", []string{"vmm/firecracker: TestBootRequests"},
		[]string{"Async"}},
	{
		"pages that were swapped out count as clean without dirty page tracking",
		[]string{"vmm/firecracker: TestColdCapturesAreFull", "vmm/firecracker: TestHugePages"},
		nil,
	},
	{
		"the second of two snapshots without a resume in between may differ",
		[]string{"vmm/firecracker: TestCaptureTwice"},
		nil,
	},
	{
		"an adopted machine has the rate limits set by an earlier process",
		[]string{"vmm/firecracker: TestRatesAfterAdopt"},
		nil,
	},
	{
		"captures on a file system without reflinks take seconds",
		[]string{"os/disk: TestProbeLeavesNothing", "os/disk: TestCloneShares"},
		nil,
	},
	{"vhost-user drives cannot be part of a snapshot", nil, []string{"vhost"}},
	{"a snapshot of another processor or release is incompatible", []string{"vmm/vmmtest: testMismatch"}, nil},
	// Served memory.
	{"page_size_kib is in bytes", []string{"os/uffd: TestParseRegions"}, nil},
	{
		"remove events must be read before pages are copied",
		[]string{"os/uffd: TestRemoveEventBeforeCopy", "host/pager: TestRemovedMemoryIsZero"},
		nil,
	},
	{"a handshake may have no or several descriptors", []string{"os/uffd: TestReceiveRefuses"}, nil},
	{"huge pages must be copied as a whole", []string{"os/uffd: TestHugePages"}, nil},
	{
		"memory is accessed before the load responds",
		[]string{"vmm/firecracker: TestPager", "vmm/firecracker: TestHosts"},
		nil,
	},
	{
		"a guest hangs when its pager exits",
		[]string{"vmm/firecracker: TestPager", "vmm/firecracker: TestPagedMachineIsNotAdopted"},
		nil,
	},
	{
		"a load blocks without a server of its memory, and so does the API when the server hangs",
		[]string{"vmm/firecracker: TestPagerHangs"},
		nil,
	},
	// The host, and the guest's network, clock and kernel.
	{
		"a guest needs the drivers of the balloon, of memory hotplug and of VMGenID",
		[]string{"image/kernel: TestGuestsHaveTheirDevices"},
		nil,
	},
	{
		"a tap must have the MAC address in the ARP cache of the guest",
		[]string{"os/netslot: TestReusedSlotRemembersNothing"},
		nil,
	},
	{"the clock of a restored guest is at the time of the snapshot", []string{"vmm/vmmtest: testClock"},
		[]string{"clock_realtime"}},
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
