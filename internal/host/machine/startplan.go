package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// startMethod names where a machine's first state comes from.
type startMethod string

const (
	methodRestore      startMethod = "restore"  // the memory of a snapshot, with clones of its disks
	methodFork         startMethod = "fork"     // a capture of the parent, on the image that the parent runs on
	methodForkViaImage startMethod = "copy"     // a capture of the parent, saved as an image: the parent runs on none
	methodWake         startMethod = "wake"     // the image the machine hibernated in, memory and disks
	methodReboot       startMethod = "reboot"   // its own disks alone: a cold boot
	methodColdBoot     startMethod = "boot"     // clones of disk images alone: a cold boot
	methodPreMount     startMethod = "premount" // a pre-mount snapshot, with clones of disk images
)

// guestBoots reports whether the guest mounts its disks itself, as in a cold boot.
func (s startMethod) guestBoots() bool {
	return s == methodReboot || s == methodColdBoot || s == methodPreMount
}

// step is one step of bringing a machine to life. Each acquires one thing and registers its cleanup.
type step string

// The steps, in the order in which they run. Every start takes a part of them.
const (
	stepAdmit     step = "admit"     // put the machine into the list, reserve memory and disk space
	stepRepair    step = "repair"    // release what an earlier stop could not, complete the disks
	stepDirectory step = "directory" // make the machine's directory and write its record
	stepAdopt     step = "adopt"     // take over a warm monitor with its directory, slot, cgroup and disks
	stepEgress    step = "egress"    // apply the egress policy to an adopted slot
	stepSlot      step = "slot"      // acquire a network slot, with its egress policy and rates
	stepCgroup    step = "cgroup"    // make the cgroup of the monitor
	stepAttach    step = "attach"    // become the writer of the volumes, and make private copies of others
	stepSwap      step = "swap"      // give an adopted monitor the disks that it lacks
	stepDisks     step = "disks"     // clone or allocate the disks
	stepStream    step = "stream"    // attach to a snapshot that is not yet downloaded
	stepPrepare   step = "prepare"   // start a monitor over an image, without a guest in it
	stepWaking    step = "waking"    // record that the guest may run from here on
	stepBoot      step = "boot"      // start a monitor that boots the guest cold
	stepStart     step = "start"     // open the guest channel and send the identity
	stepLoad      step = "load"      // load the guest's state and let it run
	stepConfirm   step = "confirm"   // wait until the guest has confirmed its identity
	stepConsume   step = "consume"   // mark the hibernation image used, durably: the wake cannot be undone by a crash
	stepPublish   step = "publish"   // record that the machine runs
)

// Parts of step lists that several starts have in common.
var (
	provisionSteps = []step{stepDirectory, stepSlot, stepCgroup, stepDisks}
	adoptSteps     = []step{stepAdopt, stepEgress}
	loadSteps      = []step{stepStart, stepLoad, stepConfirm, stepPublish}
	wakeSteps      = []step{stepWaking, stepStart, stepLoad, stepConfirm, stepConsume, stepPublish}
	bootSteps      = []step{stepBoot, stepStart, stepConfirm, stepPublish}
)

// diskSource says where the disks of a machine come from.
type diskSource string

const (
	disksKeep  diskSource = "own"    // the machine has them already
	disksImage diskSource = "image"  // clones of those in the image that the machine hibernated in
	disksClone diskSource = "clone"  // clones of other files
	disksEmpty diskSource = "empty"  // allocated; the parent's are cloned into them while it is stopped
	disksLazy  diskSource = "remote" // allocated; reads of what the machine did not write come from the stream
)

// startOp is the operation that starts a machine.
type startOp string

const (
	opCreate startOp = "create"
	opFork   startOp = "fork"
	opWake   startOp = "wake"
	opBoot   startOp = "boot"
)

// startRequest is what planStart needs to know.
type startRequest struct {
	op      startOp
	image   snapshot.Ref // create, boot: the snapshot; fork: what the parent runs on; wake: the hibernation image
	remote  bool         // part of the image is not yet downloaded
	haveMiB int          // size of the root disk in the snapshot, parent, machine or disk image
	askMiB  int          // requested size of the root disk; 0: as it is
	kernel  bool         // a kernel to boot with is configured
	memory  memoryRequest
	volumes bool // the machine has volumes of its own, or is to have
}

// memoryRequest is how much memory a new machine is to have, in MiB.
type memoryRequest struct {
	have int // in the snapshot
	most int // that a machine made from it can have
	ask  int // 0: as in the snapshot
}

// startPlan says how a machine starts. It is a value: it can be printed and tested.
type startPlan struct {
	method    startMethod
	image     snapshot.Ref
	mode      hostapi.BootMode
	disks     diskSource
	diskMiB   int
	growDisk  bool // the root disk is made larger than its source
	growFS    bool // the guest grows the file system of its root disk to the disk
	memoryMiB int  // of a new machine; 0: as in the request
	steps     []step
}

// String returns the plan in one line: the method, its parameters and the steps.
func (s startPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s disk=%dMiB,%s", s.method, s.diskMiB, s.disks)
	if s.image != "" {
		fmt.Fprintf(&b, " image=%s", s.image)
	}
	if s.growDisk {
		b.WriteString(" grow")
	}
	if s.memoryMiB != 0 {
		fmt.Fprintf(&b, " memory=%dMiB", s.memoryMiB)
	}
	b.WriteString(":")
	for _, step := range s.steps {
		b.WriteString(" " + string(step))
	}
	return b.String()
}

// planStart returns how a machine starts. It has no side effects. Each case has one method and no
// second one to try when that fails.
func planStart(r startRequest, can vmm.Capabilities) (startPlan, error) {
	if r.op != opBoot && r.askMiB != 0 && r.askMiB < r.haveMiB {
		return startPlan{}, fmt.Errorf(
			"disk of %d MiB is smaller than the %d MiB of its source; ask for at least that: %w",
			r.askMiB, r.haveMiB, hostapi.ErrInvalid)
	}
	memory, err := r.memory.plan(can)
	if err != nil {
		return startPlan{}, err
	}
	s := startPlan{
		image: r.image, diskMiB: max(r.askMiB, r.haveMiB), growDisk: r.askMiB > r.haveMiB, memoryMiB: memory,
	}
	if s.method, s.mode, err = r.chooseMethod(can); err != nil {
		return startPlan{}, err
	}
	s.growFS = s.growDisk || s.method.guestBoots()
	s.disks = s.method.diskSource(r.remote)
	s.steps = s.method.steps(r.remote)
	if at := slices.Index(s.steps, stepCgroup); r.volumes && at >= 0 {
		s.steps = slices.Insert(s.steps, at+1, stepAttach)
	}
	return s, nil
}

// chooseMethod returns the only method for a request, or why there is none.
func (r startRequest) chooseMethod(can vmm.Capabilities) (startMethod, hostapi.BootMode, error) {
	boots := r.image == "" && (r.op == opWake || r.op == opBoot)
	switch {
	case boots && !r.kernel:
		return "", "", fmt.Errorf("boot a machine from its disk: no kernel is configured: %w", hostapi.ErrUnsupported)
	case boots && r.op == opWake:
		return methodReboot, hostapi.BootCold, nil
	case boots:
		return methodColdBoot, hostapi.BootCold, nil
	case !can.Snapshot:
		return "", "", unsupported(string(r.op), can)
	case r.op == opWake:
		return methodWake, hostapi.BootWake, nil
	case r.op == opBoot:
		return methodPreMount, hostapi.BootCold, nil
	case r.op == opFork && !can.LiveFork:
		return "", "", unsupported("fork live", can)
	case r.op == opFork && r.image == "":
		return methodForkViaImage, hostapi.BootFork, nil
	case r.op == opFork:
		return methodFork, hostapi.BootFork, nil
	case r.image == "":
		return "", "", fmt.Errorf("no snapshot is named to make the machine from: %w", hostapi.ErrInvalid)
	default:
		return methodRestore, hostapi.BootSnapshot, nil
	}
}

// diskSource returns where a machine that starts by the method gets its disks.
func (s startMethod) diskSource(remote bool) diskSource {
	switch {
	case s == methodWake:
		return disksImage
	case s == methodReboot:
		return disksKeep
	case s == methodFork:
		return disksEmpty
	case remote:
		return disksLazy
	default:
		return disksClone
	}
}

// steps returns the steps of a start by the method.
func (s startMethod) steps(remote bool) []step {
	admit, prepare := []step{stepAdmit}, []step{stepPrepare}
	switch s {
	case methodWake:
		return slices.Concat(admit, []step{stepRepair, stepSlot, stepCgroup, stepDisks, stepPrepare}, wakeSteps)
	case methodReboot:
		return slices.Concat(admit, []step{stepRepair, stepSlot, stepCgroup, stepWaking}, bootSteps)
	case methodColdBoot:
		return slices.Concat(admit, provisionSteps, bootSteps)
	}
	if remote {
		prepare = []step{stepStream, stepPrepare}
	}
	return slices.Concat(admit, provisionSteps, prepare, loadSteps)
}

// withWarmMonitor returns the plan for a start that adopts a warm monitor instead of preparing one.
func (s startPlan) withWarmMonitor() startPlan {
	var attach []step
	if slices.Contains(s.steps, stepAttach) {
		attach = []step{stepAttach}
	}
	s.steps = slices.Concat([]step{stepAdmit}, adoptSteps, attach, []step{stepSwap}, loadSteps)
	return s
}

// forWarmMonitor returns the plan that makes a warm monitor: all of a restore but the machine and its guest.
func (s startPlan) forWarmMonitor() startPlan {
	s.steps = slices.Concat(provisionSteps, []step{stepPrepare})
	return s
}

// plan returns how much memory a new machine has. Memory beyond the snapshot's comes in pairs of MiB.
func (w memoryRequest) plan(can vmm.Capabilities) (int, error) {
	most, ask := w.have, w.ask
	if can.Memory.Hotplug {
		most = max(w.have, w.most)
	}
	switch {
	case ask == 0:
		return w.have, nil
	case ask > w.have:
		ask += (ask - w.have) % 2
	}
	if ask < w.have || ask > most {
		return 0, fmt.Errorf(
			"memory of %d MiB was asked for, and machines made from this can have %d to %d MiB here: %w",
			w.ask,
			w.have,
			most,
			hostapi.ErrInvalid,
		)
	}
	return ask, nil
}

func unsupported(op string, can vmm.Capabilities) error {
	return fmt.Errorf("%w: %w", hostapi.ErrUnsupported, &vmm.UnsupportedError{Op: op, Driver: can.Name})
}
