package machine

import (
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/obs"
)

// View is a machine as others see it at one moment.
type View struct {
	ID         hostapi.MachineID
	State      hostapi.State
	Template   hostapi.TemplateName // where its ancestry begins
	Snapshot   hostapi.SnapshotID   // that it was created from, if any
	Parent     hostapi.MachineID    // that it was forked from, if any
	VCPUs      int
	MemoryMiB  int
	DiskMiB    int
	Disks      []snapshot.DataDisk // beside the root disk, in the guest's order
	Volumes    []hostapi.AttachedVolume
	GuestIP    string // as this host reaches it, while the machine has a network slot
	Tap        string
	MAC        string
	PID        int
	Generation uint64
	BootMode   hostapi.BootMode
	Boot       time.Duration // of the last start, from the request to the guest's confirmation
	Pause      time.Duration // of the last stop for a fork or snapshot
	Created    time.Time
	Persistent bool
	Egress     hostapi.Egress
	Limits     hostapi.Limits // that were asked for; the host's apply too
	Labels     map[string]string
	Reason     string      // why it failed
	Phases     []obs.Phase // of the last operation, in order
	// PauseReason is why it is paused, if no user asked for that.
	PauseReason hostapi.PauseReason
	// Unresponsive is since when its guest does not reply although it runs; zero: it does, as far as is known.
	Unresponsive time.Time
	Group        string
	DiskBytes    int64 // that removing its disks would free, as last measured
}

// Usage is the host's resources that a machine uses.
type Usage struct {
	PID                          int
	Uptime                       time.Duration
	CPU                          time.Duration
	CPUPercent                   float64 // since the last call, of one processor
	RSSBytes, PSSBytes, VSZBytes int64
	Threads                      int
	DiskBytes                    int64 // that removing its disks would free, as last measured
	ReadBytes, WrittenBytes      int64 // from and to storage, since its monitor started
}

// Event is a change of a machine that no caller asked for.
type Event struct {
	Time    time.Time
	Machine hostapi.MachineID
	Type    string // as in hostapi.Event
	Reason  string
	// OutOfMemory says that it ended because the host or its own limit had no memory for it.
	OutOfMemory bool
	Console     []byte // as Manager.Console, of a machine that died; nil if there is none
}

// view returns the machine as others see it.
func (mc *machine) view() View {
	mc.mu.Lock()
	defer mc.mu.Unlock()
	in := mc.rec
	out := View{
		ID: in.ID, State: publicState[in.State], Template: in.Template, Snapshot: in.Snapshot, Parent: in.Parent,
		VCPUs: in.VCPUs, MemoryMiB: in.MemoryMiB, DiskMiB: in.DiskMiB, Disks: in.Data, Generation: in.Generation,
		BootMode: in.BootMode, Boot: mc.boot, Pause: mc.pause, Created: in.Created, Persistent: in.Persistent,
		Egress: in.Egress, Limits: in.Limits, Labels: in.Labels, Reason: in.Reason, Phases: mc.phases,
	}
	out.DiskBytes, out.Group, out.Volumes = mc.diskBytes, in.Group, in.attached()
	if mc.waitingLocked() != nil {
		out.State, out.PauseReason = hostapi.Paused, hostapi.PausedNoSpace
	}
	if mc.slot != nil {
		slot := mc.slot.Info()
		out.GuestIP, out.Tap, out.MAC = slot.GuestIP.String(), slot.TapName, slot.MAC.String()
	}
	if mc.vm != nil {
		out.PID = mc.vm.PID()
	}
	return out
}
