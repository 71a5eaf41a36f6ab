package machine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/vmm"
)

// spec returns the specification of a machine's monitor.
func (m *Manager) spec(mc *machine) vmm.Spec {
	s := vmm.Spec{
		ID: mc.rec.resourceName(), Dir: filepath.Join(mc.dir, monitorDir),
		VCPUs: mc.rec.VCPUs, MemoryMiB: mc.rec.MemoryMiB,
		Disks: mc.diskSpecs(diskRate(mc.rec.Limits.ClampTo(m.cfg.Limits))),
	}
	if mc.rec.Slot >= 0 {
		s.Confine.UID, s.Confine.GID = m.cfg.Owner(mc.rec.Slot)
	}
	if mac, err := net.ParseMAC(mc.rec.MAC); err == nil {
		s.NIC = &vmm.NIC{MAC: mac}
	}
	if mc.slot != nil && s.NIC != nil {
		slot := mc.slot.Info()
		s.NIC.Tap, s.NIC.Device, s.NIC.Netns = slot.Tap, slot.TapName, slot.Netns
	}
	if mc.cgroup != nil {
		s.Confine.Enter, s.Confine.Jail = mc.cgroup.Enter, mc.cgroup.Jail()
	}
	return s
}

// chownFiles gives a machine's files to the user that runs its monitor.
func (m *Manager) chownFiles(mc *machine) error {
	err := m.chown(mc, filepath.Join(mc.dir, monitorDir))
	for _, d := range mc.disks() {
		err = errors.Join(err, m.chown(mc, d.path))
	}
	if err != nil {
		return fmt.Errorf("change the owner of the files of machine %s: %w", mc.id, err)
	}
	return nil
}

// identity returns the identity that a machine's guest takes on: fresh entropy, and the time of this moment.
func identity(mc *machine, growFS bool) guestapi.Identity {
	entropy := make([]byte, 64)
	_, _ = rand.Read(entropy) // never fails: it ends the program instead
	id := guestapi.Identity{
		MachineID: string(mc.id), Hostname: mc.rec.Hostname, Generation: mc.rec.Generation, Entropy: entropy,
		Env: mc.rec.Env, User: mc.rec.User, DiskGrow: growFS,
	}
	if mc.slot != nil {
		network := mc.slot.Info().Guest
		id.Network = &network
	}
	for name, content := range mc.rec.Files {
		if id.Files == nil {
			id.Files = make(map[string][]byte, len(mc.rec.Files))
		}
		id.Files[name] = []byte(content)
	}
	id.Time = time.Now()
	return id
}

// metadata returns the part of an identity that programs know from the metadata services of clouds, under the names
// that it has there.
func metadata(id guestapi.Identity) []byte {
	own := map[string]string{"instance-id": id.MachineID, "local-hostname": id.Hostname, "hostname": id.Hostname}
	text, _ := json.Marshal(map[string]any{"latest": map[string]any{"meta-data": own}}) // strings alone: no error
	return text
}
