package agent

import (
	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/machine"
)

// createRequest returns the request to the machine manager for a machine from a snapshot.
func createRequest(req hostapi.Create) machine.CreateRequest {
	return machine.CreateRequest{
		ID: req.ID, Template: req.Template, Snapshot: req.Snapshot, DiskMiB: req.DiskMiB, MemoryMiB: req.MemoryMiB,
		Hostname: req.Hostname, Env: req.Env, Files: req.Files, Persistent: req.Persistent, Egress: req.Egress,
		Limits: req.Limits, Group: req.Group, Labels: req.Labels, Volumes: req.Volumes,
	}
}

// forkRequest returns the request to the machine manager for a fork.
func forkRequest(req hostapi.Fork) machine.ForkRequest {
	out := machine.ForkRequest{Parent: req.Parent}
	for _, c := range req.Children {
		out.Children = append(out.Children, machine.ChildRequest(c))
	}
	return out
}

// machineOf returns a machine as the contract describes it, with the id of its host.
func machineOf(host hostapi.HostID, v machine.View) hostapi.Machine {
	out := hostapi.Machine{
		ID: v.ID, Host: host, State: v.State, Template: v.Template, Snapshot: v.Snapshot, Parent: v.Parent,
		VCPUs: v.VCPUs, MemoryMiB: v.MemoryMiB, DiskMiB: v.DiskMiB, GuestIP: v.GuestIP, Tap: v.Tap, MAC: v.MAC,
		PID: v.PID, Generation: v.Generation, BootMode: v.BootMode, Boot: v.Boot, Pause: v.Pause, Created: v.Created,
		Persistent: v.Persistent, Egress: v.Egress, Limits: v.Limits, Labels: v.Labels, Reason: v.Reason,
		PauseReason: v.PauseReason, Unresponsive: v.Unresponsive, Group: v.Group, DiskBytes: v.DiskBytes,
		Volumes: v.Volumes,
	}
	for _, d := range v.Disks {
		if d.Place == 0 { // others are in Volumes
			out.Disks = append(out.Disks, hostapi.DataDisk{Name: d.Name, SizeMiB: d.MiB, Mount: d.Mount})
		}
	}
	for _, p := range v.Phases {
		out.Phases = append(out.Phases, hostapi.Phase{Name: p.Name, Took: p.Took})
	}
	return out
}

// eventOf returns an event of a machine as the contract describes it.
func eventOf(e machine.Event) hostapi.Event {
	return hostapi.Event{
		Time: e.Time, Machine: e.Machine, Type: e.Type, Reason: e.Reason,
		OutOfMemory: e.OutOfMemory, Console: e.Console,
	}
}
