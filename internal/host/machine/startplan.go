package machine

import (
	"fmt"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/vmm"
)

// startMethod is the way a machine comes to life.
type startMethod string

const (
	methodRestore      startMethod = "restore" // a snapshot's memory, with a clone of its disk
	methodFork         startMethod = "fork"    // a capture of the parent, on the image that the parent runs on
	methodForkViaImage startMethod = "copy"    // a capture of the parent, saved as an image first: the parent runs on none
	methodWake         startMethod = "wake"    // the image of its sleep, with its own disk
	methodColdBoot     startMethod = "boot"    // its own disk alone
)

// startRequest is what is known when a machine shall come to life.
type startRequest struct {
	op      string       // "create", "fork" or "wake"
	image   snapshot.Ref // create: the snapshot; fork: what the parent runs on; wake: what it sleeps in
	haveMiB int          // of disk, in the snapshot, parent or machine
	askMiB  int          // of disk; 0: what there is
	kernel  bool         // a kernel to boot with is configured
	memory  memoryRequest
}

// memoryRequest is how much memory a new machine shall have, in MiB.
type memoryRequest struct {
	have int // in the snapshot
	most int // that a machine made from it can have
	ask  int // 0: what there is
}

// startPlan is how a machine will come to life: a value to print, test and follow.
type startPlan struct {
	method  startMethod
	image   snapshot.Ref
	mode    hostapi.BootMode
	diskMiB int
	grow    bool // the disk, and the guest's file system in it
	memory  int  // MiB, of a new machine
}

func (s startPlan) String() string {
	text := fmt.Sprintf("%s disk=%dMiB", s.method, s.diskMiB)
	if s.image != "" {
		text += " image=" + string(s.image)
	}
	if s.grow {
		text += " grow"
	}
	if s.memory != 0 {
		text += fmt.Sprintf(" memory=%dMiB", s.memory)
	}
	return text
}

// planStart says how a machine will come to life. It touches nothing. There is one way for each case and
// no second one to try when it fails.
func planStart(w startRequest, can vmm.Capabilities) (startPlan, error) {
	if w.askMiB != 0 && w.askMiB < w.haveMiB {
		return startPlan{}, fmt.Errorf(
			"a disk of %d MiB is smaller than the %d MiB it is made from: %w",
			w.askMiB,
			w.haveMiB,
			hostapi.ErrInvalid,
		)
	}
	memory, err := w.memory.plan(can)
	if err != nil {
		return startPlan{}, err
	}
	s := startPlan{image: w.image, diskMiB: max(w.askMiB, w.haveMiB), grow: w.askMiB > w.haveMiB, memory: memory}
	switch {
	case w.op == "wake" && w.image == "" && !w.kernel:
		return startPlan{}, fmt.Errorf("boot a machine from its disk: no kernel is configured: %w", hostapi.ErrUnsupported)
	case w.op == "wake" && w.image == "":
		s.method, s.mode = methodColdBoot, hostapi.BootCold
	case !can.Snapshot:
		return startPlan{}, unsupported(w.op, can)
	case w.op == "wake":
		s.method, s.mode = methodWake, hostapi.BootWake
	case w.op == "fork" && !can.LiveFork:
		return startPlan{}, unsupported("fork live", can)
	case w.op == "fork" && w.image == "":
		s.method, s.mode = methodForkViaImage, hostapi.BootFork
	case w.op == "fork":
		s.method, s.mode = methodFork, hostapi.BootFork
	case w.image == "":
		return startPlan{}, fmt.Errorf("a machine is made from a snapshot, and none is named: %w", hostapi.ErrInvalid)
	default:
		s.method, s.mode = methodRestore, hostapi.BootSnapshot
	}
	return s, nil
}

// plan says how much memory a new machine has: more comes in pairs of MiB.
func (w memoryRequest) plan(can vmm.Capabilities) (int, error) {
	most, ask := w.have, w.ask
	if can.MemoryHotplug {
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
