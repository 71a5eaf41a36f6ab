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

// Names in a machine's directory, beside those of its disks, which are a snapshot's. The monitor has monitorDir to
// itself.
const (
	recordFile = "machine.json"
	monitorDir = "vm"
)

// recordVersion is the format of machine.json; a machine with another is left alone and reported.
const recordVersion = 1

// record is the durable description of a machine: enough to take it over or to remove it.
type record struct {
	Version      int                  `json:"version"`
	ID           hostapi.MachineID    `json:"id"`
	ResourceName string               `json:"rig,omitempty"` // name of its directory, cgroup and monitor; "": the id
	State        state                `json:"state"`
	Before       state                `json:"before,omitempty"` // with hibernating: running or paused
	Template     hostapi.TemplateName `json:"template,omitempty"`
	Snapshot     hostapi.SnapshotID   `json:"snapshot,omitempty"`
	Parent       hostapi.MachineID    `json:"parent,omitempty"`
	// Base is the image that the machine runs on or hibernates in, acquired; "": it booted cold.
	Base snapshot.Ref `json:"base,omitempty"`
	// Next is, with hibernating, the image that is being made.
	Next      snapshot.Ref        `json:"next,omitempty"`
	VCPUs     int                 `json:"vcpus"`
	MemoryMiB int                 `json:"memory_mib"`
	DiskMiB   int                 `json:"disk_mib"`
	Data      []snapshot.DataDisk `json:"data,omitempty"`    // disks beside the root disk
	Places    int                 `json:"places,omitempty"`  // drives for volumes, behind the other disks
	Volumes   []volumeRecord      `json:"volumes,omitempty"` // that the machine writes to
	// Changing is the place whose volume is being detached, or with Attaching attached, while the machine runs.
	Changing   int               `json:"changing,omitempty"`
	Attaching  bool              `json:"attaching,omitempty"`
	Slot       int               `json:"slot"` // -1: none
	MAC        string            `json:"mac,omitempty"`
	Hostname   string            `json:"hostname"`
	Env        map[string]string `json:"env,omitempty"`
	Files      map[string]string `json:"files,omitempty"` // of the guest's identity
	User       string            `json:"user,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	Persistent bool              `json:"keep"`
	Egress     hostapi.Egress    `json:"egress,omitzero"`
	Limits     hostapi.Limits    `json:"limits,omitzero"`
	Group      string            `json:"group,omitempty"` // whose disk space is bounded together
	// NoEgress is read from old records alone: Egress denies the others.
	NoEgress bool `json:"no_egress,omitempty"`
	// Lazy: it began on a snapshot that was not yet downloaded, so its monitor needs this process.
	Lazy       bool              `json:"stream,omitempty"`
	Ephemeral  bool              `json:"scratch,omitempty"` // of no use to a later process: Recover removes it
	Labels     map[string]string `json:"labels,omitempty"`
	Generation uint64            `json:"generation"`
	BootMode   hostapi.BootMode  `json:"boot_mode,omitempty"`
	Created    time.Time         `json:"created"`
	Reason     string            `json:"reason,omitempty"`
	// Halted: the space keeper stopped it; State is what it is when there is space.
	Halted bool `json:"halted,omitempty"`
}

// resourceName returns the name of a machine's directory, cgroup and monitor.
func (in record) resourceName() string {
	if in.ResourceName != "" {
		return in.ResourceName
	}
	return string(in.ID)
}

// durability says what a record must survive.
type durability bool

const (
	// surviveProcess: the end of this process, which is enough where the end of the host ends the machine too.
	surviveProcess durability = false
	// surviveHost: a crash of the host.
	surviveHost durability = true
)

// update changes a machine's record: on disk first, then in memory. The caller owns the machine.
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
		put = durable.WriteKept
	}
	if err := put(filepath.Join(mc.dir, recordFile), data, 0o600); err != nil {
		return wrapNoSpace(fmt.Errorf("record machine %s: %w", mc.id, err))
	}
	return nil
}

// readRecord reads a machine's record, or the last one that was made durable if a crash of the host cut it off.
func readRecord(dir string) (record, error) {
	var in record
	if _, err := durable.ReadKeptJSON(filepath.Join(dir, recordFile), &in); err != nil {
		return record{}, err
	}
	if in.Version != recordVersion {
		return record{}, fmt.Errorf("%s: format version %d is not %d of this program", dir, in.Version, recordVersion)
	}
	in.Egress.DenyOthers, in.NoEgress = in.Egress.DenyOthers || in.NoEgress, false
	return in, nil
}
