// Package probe finds out what this machine can do, by trying it.
//
// It owns the list of checks and what each says: a finding, and a fix where one is needed. Nothing is
// concluded from the presence of a file: an accelerator has booted a guest, a file was cloned, a network
// namespace held a tap and a rule. It changes nothing; what a probe makes is gone when it returns. The
// same probes choose the accelerator, fill the table of `pandastack doctor`, tell setup what is missing,
// and decide which tests may skip.
//
// Probes are independent and may run at once.
package probe

import (
	"context"
	"fmt"
	"time"
)

// Level is how much a finding matters.
type Level string

// The levels of findings.
const (
	OK   Level = "ok"
	Warn Level = "warn" // works, but not as well as it could
	Fail Level = "fail" // sandboxes will not work
)

// Finding is what a probe found out.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`          // what there is, or what is wrong
	Fix   string `json:"fix,omitempty"` // what a person can do; empty when all is well
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

// Result is a probe that was run.
type Result struct {
	Name string `json:"name"`
	Finding
	Took time.Duration `json:"took_ns"`
}

// Config says what the probes look at.
type Config struct {
	DataDir string // need not exist
	QEMU    string // program; empty: qemu-system-<processor> in PATH
	Driver  string // Auto (or empty), FirecrackerDriver or QEMUDriver
	// Firecracker is its program; empty: firecracker in PATH.
	Firecracker string
	Jailer      string // program of Firecracker's own jailer; empty: it is not used
	HugePages   bool   // memory of machines shall be made of huge pages
	GuestAgent  string // path of the guest agent's program; empty: not looked at

	system string // where /proc and /sys are, for tests; empty: the root
}

// The names of all probes.
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
	Clock       = "clock"
	HostKernel  = "host-kernel"
	Nested      = "nested"
	CPUFaults   = "cpu-faults"
	SMT         = "smt"
	NXPages     = "nx-pages"
)

// fixSetup is the remedy of most findings.
const fixSetup = "run `pandastack setup`"

// All gives every probe, in the order they are shown.
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
		{Clock, clock},
		{HostKernel, c.hostKernel},
		{Nested, c.nested},
		{CPUFaults, c.processorFaults},
		{SMT, c.smt},
		{NXPages, c.noExecutePages},
	}
}

// limit bounds one probe; the accelerator's own deadlines are shorter.
const limit = 2 * time.Minute

// Run runs probes one after the other and tells each result to each, which may be nil, as it comes.
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

// Find picks probes by name. An unknown name is an error.
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
		return nil, fmt.Errorf("there is no probe %q", n)
	}
	return found, nil
}
