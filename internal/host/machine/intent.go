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
	intentFile = "machine.json"
	monitorDir = "vm"
)

// intentVersion is the format of machine.json; a machine of another is left alone and reported.
const intentVersion = 1

// intent is what is written down about a machine: enough to take it over or to remove it.
type intent struct {
	Version    int                  `json:"version"`
	ID         hostapi.MachineID    `json:"id"`
	Rig        string               `json:"rig,omitempty"` // name of its directory, group and monitor; "": the id
	State      state                `json:"state"`
	Before     state                `json:"before,omitempty"` // with hibernating: running or paused
	Template   hostapi.TemplateName `json:"template,omitempty"`
	Snapshot   hostapi.SnapshotID   `json:"snapshot,omitempty"`
	Parent     hostapi.MachineID    `json:"parent,omitempty"`
	Base       snapshot.Ref         `json:"base,omitempty"` // whose memory it runs on, or sleeps in; held; "": booted cold
	Next       snapshot.Ref         `json:"next,omitempty"` // with hibernating: the image being made
	VCPUs      int                  `json:"vcpus"`
	MemoryMiB  int                  `json:"memory_mib"`
	DiskMiB    int                  `json:"disk_mib"`
	Data       []snapshot.DataDisk  `json:"data,omitempty"` // disks beside the root disk
	Slot       int                  `json:"slot"`           // -1: none
	MAC        string               `json:"mac,omitempty"`
	Hostname   string               `json:"hostname"`
	Env        map[string]string    `json:"env,omitempty"`
	Files      map[string]string    `json:"files,omitempty"` // of the guest's identity
	User       string               `json:"user,omitempty"`
	Workdir    string               `json:"workdir,omitempty"`
	Keep       bool                 `json:"keep"`
	Egress     hostapi.Egress       `json:"egress,omitzero"`
	Limits     hostapi.Limits       `json:"limits,omitzero"`
	NoEgress   bool                 `json:"no_egress,omitempty"` // read alone: Egress denies the others
	Stream     bool                 `json:"stream,omitempty"`    // its monitor needs this process: it began on a partial snapshot
	Scratch    bool                 `json:"scratch,omitempty"`   // of no use to another process: Recover removes it
	Labels     map[string]string    `json:"labels,omitempty"`
	Generation uint64               `json:"generation"`
	BootMode   hostapi.BootMode     `json:"boot_mode,omitempty"`
	Created    time.Time            `json:"created"`
	Reason     string               `json:"reason,omitempty"`
}

// rig is the name of a machine's directory, group and monitor.
func (in intent) rig() string {
	if in.Rig != "" {
		return in.Rig
	}
	return string(in.ID)
}

// surety says what an intent must survive.
type surety bool

const (
	// ofProcess: it survives the death of this process, which is enough where the death of the whole
	// host takes the machine with it.
	ofProcess surety = false
	// ofHost: it survives the death of the host.
	ofHost surety = true
)

// record changes a machine's intent: on disk first, then in memory. The caller owns the machine.
func (m *Manager) record(mc *machine, sure surety, change func(*intent)) error {
	next := mc.in
	change(&next)
	if !mc.in.State.may(next.State) {
		return fmt.Errorf("machine %s cannot go from %s to %s", mc.id, mc.in.State, next.State)
	}
	if err := m.writeIntent(mc, sure, next); err != nil {
		return err
	}
	mc.mu.Lock()
	defer mc.mu.Unlock()
	mc.in = next
	return nil
}

func (m *Manager) writeIntent(mc *machine, sure surety, in intent) error {
	data, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("record machine %s: %w", mc.id, err)
	}
	put := durable.Replace
	if sure {
		put = durable.WriteFile
	}
	if err := put(filepath.Join(mc.dir, intentFile), data, 0o600); err != nil {
		return noSpace(fmt.Errorf("record machine %s: %w", mc.id, err))
	}
	return nil
}

func readIntent(dir string) (intent, error) {
	var in intent
	if err := durable.ReadJSON(filepath.Join(dir, intentFile), &in); err != nil {
		return intent{}, err
	}
	if in.Version != intentVersion {
		return intent{}, fmt.Errorf("%s: format version %d is not %d of this program", dir, in.Version, intentVersion)
	}
	in.Egress.DenyOthers, in.NoEgress = in.Egress.DenyOthers || in.NoEgress, false
	return in, nil
}
