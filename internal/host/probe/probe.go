// Package probe finds out what this machine can do, by trying it.
//
// It owns the list of checks and their texts: a finding, and a fix if one is needed. It concludes nothing from the
// presence of a file: it boots a guest with the accelerator, clones a file, and creates a network namespace with a
// tap and a rule. It changes nothing; a probe removes what it makes. The same probes choose the accelerator, fill the
// table of `pandastack doctor`, show setup what is missing, and decide which tests may skip.
//
// Probes are independent and may run concurrently.
package probe

import (
	"context"
	"fmt"
	"time"
)

// Level is the severity of a finding.
type Level string

// Levels of findings.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, but not as well as it could
	Fail Level = "fail" // sandboxes will not work
)

// Finding is the result of a probe.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`          // what was found, or what is wrong
	Fix   string `json:"fix,omitempty"` // what a person can do; empty if all is well
}

func ok(format string, args ...any) Finding {
	return Finding{Level: OK, Text: fmt.Sprintf(format, args...)}
}

func warn(fix, format string, args ...any) Finding {
	return Finding{Level: Warn, Text: fmt.Sprintf(format, args...), Fix: fix}
}

func fail(fix, format string, args ...any) Finding {
	return Finding{Level: Fail, Text: fmt.Sprintf(format, args...), Fix: fix}
}

// Probe is one check.
type Probe struct {
	Name string
	Run  func(ctx context.Context) Finding
}

// Result is the result of one probe that was run.
type Result struct {
	Name string `json:"name"`
	Finding
	Took time.Duration `json:"took_ns"`
}

// Config configures the probes.
type Config struct {
	DataDir string // need not exist
	QEMU    string // program; empty: qemu-system-<processor> in PATH
	Driver  string // Auto (or empty), FirecrackerDriver or QEMUDriver
	// Firecracker is the path of its program; empty: firecracker in PATH.
	Firecracker string
	Jailer      string // program of Firecracker's own jailer; empty: not used
	HugePages   bool   // machines use huge pages for memory
	GuestAgent  string // path of the guest agent's program; empty: not checked

	system string // directory of /proc and /sys, for tests; empty: the root
}

// Names of all probes.
const (
	Root        = "root"
	QEMU        = "qemu"
	Kernel      = "kernel"
	GuestAgent  = "guest-agent"
	Accelerator = "accelerator"
	Firecracker = "firecracker"
	Driver      = "driver"
	GuestMemory = "guest-memory"
	Reflink     = "reflink"
	Network     = "network"
	CGroups     = "cgroups"
	Jail        = "jail"
	Tools       = "tools"
	Loop        = "loop"
	Userfaultfd = "userfaultfd"
	Files       = "open-files"
	Memory      = "memory"
	Disk        = "disk"
	Encryption  = "encryption"
	Clock       = "clock"
	HostKernel  = "host-kernel"
	Nested      = "nested"
	CPUFaults   = "cpu-faults"
	SMT         = "smt"
	NXPages     = "nx-pages"
)

// fixSetup is the remedy of most findings.
const fixSetup = "run `pandastack setup`"

// All returns every probe, in display order.
func All(c Config) []Probe {
	return []Probe{
		{Root, c.root},
		{QEMU, c.qemu},
		{Kernel, c.kernel},
		{GuestAgent, c.guestAgent},
		{Accelerator, c.accelerator},
		{Firecracker, c.firecracker},
		{Driver, c.driver},
		{GuestMemory, c.guestMemory},
		{Reflink, c.reflink},
		{Network, network},
		{CGroups, cgroups},
		{Jail, c.jailed},
		{Tools, tools},
		{Loop, loop},
		{Userfaultfd, userfaultfd},
		{Files, files},
		{Memory, memory},
		{Disk, c.disk},
		{Encryption, c.encryption},
		{Clock, clock},
		{HostKernel, c.hostKernel},
		{Nested, c.nested},
		{CPUFaults, c.processorFaults},
		{SMT, c.smt},
		{NXPages, c.noExecutePages},
	}
}

// limit limits one probe; the accelerator's own deadlines are shorter.
const limit = 2 * time.Minute

// Run runs probes one after the other. It calls each, which may be nil, with every result as it arrives.
func Run(ctx context.Context, probes []Probe, each func(Result)) []Result {
	var all []Result
	for _, p := range probes {
		r := run(ctx, p)
		if each != nil {
			each(r)
		}
		all = append(all, r)
	}
	return all
}

func run(ctx context.Context, p Probe) Result {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("probe %s took longer than %v", p.Name, limit))
	defer cancel()
	began := time.Now()
	f := p.Run(ctx)
	return Result{Name: p.Name, Finding: f, Took: time.Since(began)}
}

// Find returns the probes with the given names. An unknown name is an error.
func Find(probes []Probe, names ...string) ([]Probe, error) {
	var found []Probe
next:
	for _, n := range names {
		for _, p := range probes {
			if p.Name == n {
				found = append(found, p)
				continue next
			}
		}
		return nil, fmt.Errorf("unknown probe %q", n)
	}
	return found, nil
}
