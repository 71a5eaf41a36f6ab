package machine

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
	"github.com/pandastack/pandastack/internal/host/snapshot"
	"github.com/pandastack/pandastack/internal/lib/durable"
)

// Names in a machine's directory, beside those of its disks, which are a snapshot's. The monitor keeps its own files in monitorDir.
const (
	recordFile = "machine.json"
	monitorDir = "vm"
)

// recordVersion is the format of machine.json; a machine of another is left alone and reported.
const recordVersion = 1

// record is what is written down about a machine: enough to take it over or to remove it.
type record struct {
	Version      int                  `json:"version"`
	ID           hostapi.MachineID    `json:"id"`
	ResourceName string               `json:"rig,omitempty"` // name of its directory, group and monitor; "": the id
	State        state                `json:"state"`
	Before       state                `json:"before,omitempty"` // with hibernating: running or paused
	Template     hostapi.TemplateName `json:"template,omitempty"`
	Snapshot     hostapi.SnapshotID   `json:"snapshot,omitempty"`
	Parent       hostapi.MachineID    `json:"parent,omitempty"`
	Base         snapshot.Ref         `json:"base,omitempty"` // whose memory it runs on, or sleeps in; held; "": booted cold
	Next         snapshot.Ref         `json:"next,omitempty"` // with hibernating: the image being made
	VCPUs        int                  `json:"vcpus"`
	MemoryMiB    int                  `json:"memory_mib"`
	DiskMiB      int                  `json:"disk_mib"`
	Data         []snapshot.DataDisk  `json:"data,omitempty"` // disks beside the root disk
	Slot         int                  `json:"slot"`           // -1: none
	MAC          string               `json:"mac,omitempty"`
	Hostname     string               `json:"hostname"`
	Env          map[string]string    `json:"env,omitempty"`
	Files        map[string]string    `json:"files,omitempty"` // of the guest's identity
	User         string               `json:"user,omitempty"`
	Workdir      string               `json:"workdir,omitempty"`
	Persistent   bool                 `json:"keep"`
	Egress       hostapi.Egress       `json:"egress,omitzero"`
	Limits       hostapi.Limits       `json:"limits,omitzero"`
	NoEgress     bool                 `json:"no_egress,omitempty"` // read alone: Egress denies the others
	Lazy         bool                 `json:"stream,omitempty"`    // its monitor needs this process: it began on a partial snapshot
	Ephemeral    bool                 `json:"scratch,omitempty"`   // of no use to another process: Recover removes it
	Labels       map[string]string    `json:"labels,omitempty"`
	Generation   uint64               `json:"generation"`
	BootMode     hostapi.BootMode     `json:"boot_mode,omitempty"`
	Created      time.Time            `json:"created"`
	Reason       string               `json:"reason,omitempty"`
}

// resourceName is the name of a machine's directory, group and monitor.
func (in record) resourceName() string {
	if in.ResourceName != "" {
		return in.ResourceName
	}
	return string(in.ID)
}

// durability says what an intent must survive.
type durability bool

const (
	// ofProcess: it survives the death of this process, which is enough where the death of the whole
	// host takes the machine with it.
	surviveProcess durability = false
	// ofHost: it survives the death of the host.
	surviveHost durability = true
)

// update changes a machine's intent: on disk first, then in memory. The caller owns the machine.
func (m *Manager) update(mc *machine, sure durability, change func(*record)) error {
	next := mc.rec
	change(&next)
	if !mc.rec.State.canBecome(next.State) {
		return fmt.Errorf("machine %s cannot go from %s to %s", mc.id, mc.rec.State, next.State)
	}
	if err := m.writeRecord(mc, sure, next); err != nil {
		return err
	}
	mc.mu.Lock()
	defer mc.mu.Unlock()
	mc.rec = next
	return nil
}

func (m *Manager) writeRecord(mc *machine, sure durability, in record) error {
	data, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("record machine %s: %w", mc.id, err)
	}
	put := durable.Replace
	if sure {
		put = durable.WriteFile
	}
	if err := put(filepath.Join(mc.dir, recordFile), data, 0o600); err != nil {
		return wrapNoSpace(fmt.Errorf("record machine %s: %w", mc.id, err))
	}
	return nil
}

func readRecord(dir string) (record, error) {
	var in record
	if err := durable.ReadJSON(filepath.Join(dir, recordFile), &in); err != nil {
		return record{}, err
	}
	if in.Version != recordVersion {
		return record{}, fmt.Errorf("%s: format version %d is not %d of this program", dir, in.Version, recordVersion)
	}
	in.Egress.DenyOthers, in.NoEgress = in.Egress.DenyOthers || in.NoEgress, false
	return in, nil
}
