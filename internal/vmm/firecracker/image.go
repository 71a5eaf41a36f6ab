package firecracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// shapeName is the file of an image that holds its shape.
const shapeName = "shape.json"

// machineFormat is the version of the virtual hardware that Boot configures. Change it with every
// change that is visible to a guest and not part of shape. Images with another format are refused.
const machineFormat = "firecracker-mmio-2"

// Limits on files of an image and of a monitor. A snapshot file has some tens of KiB; Firecracker
// itself accepts at most 10 MiB.
const (
	maxState = 10 << 20
	maxShape = 64 << 10
)

// shape is what the driver must know about a snapshot in addition to the manifest.
type shape struct {
	BaseMiB    int `json:"base_mib"` // memory at boot
	HotplugMiB int `json:"more_mib"` // hotpluggable memory (virtio-mem) in addition
	// ReadOnly has one entry per drive, including those without a disk.
	ReadOnly []bool `json:"read_only"`
	Device   string `json:"device,omitempty"` // tap of the network card; "": no network card
	Rates    bool   `json:"rates,omitempty"`  // some rate limit is set
	// Huge reports that the guest's memory had 2 MiB pages, which a load from a file must override.
	Huge bool `json:"huge,omitempty"`
}

func (s shape) memoryBytes() int64 { return int64(s.BaseMiB+s.HotplugMiB) << 20 }

// newShape returns the shape of a machine that Boot creates.
func (d *Driver) newShape(spec vmm.Spec) shape {
	s := shape{BaseMiB: spec.MemoryMiB, HotplugMiB: d.config.HotplugMemoryMiB, Rates: hasRates(spec)}
	for _, disk := range spec.Disks {
		s.ReadOnly = append(s.ReadOnly, disk.ReadOnly)
	}
	for range d.config.HotplugDisks {
		s.ReadOnly = append(s.ReadOnly, false)
	}
	if spec.NIC != nil {
		s.Device = spec.NIC.Device
	}
	return s
}

// checkImage checks an image against this host and a spec, and returns the image's shape.
func (d *Driver) checkImage(spec vmm.Spec, image vmm.Image) (shape, error) {
	want := d.manifest(spec)
	m := image.Manifest
	str := strconv.Itoa
	for _, f := range []struct{ field, image, host string }{
		{"version", str(m.Version), str(want.Version)},
		{"driver", m.Driver, want.Driver},
		{"Firecracker version", m.VMM, want.VMM},
		{"accelerator", string(m.Accelerator), string(want.Accelerator)},
		{"processor", m.CPU, want.CPU},
		{"machine", m.Machine, want.Machine},
		{"vcpus", str(m.VCPUs), str(want.VCPUs)},
		{"nic", strconv.FormatBool(m.NIC), strconv.FormatBool(want.NIC)},
	} {
		if f.image != f.host {
			return shape{}, &vmm.MismatchError{Field: f.field, Image: f.image, Host: f.host}
		}
	}
	most := max(m.MemoryMiB, m.MaxMemoryMiB)
	if spec.MemoryMiB < m.MemoryMiB || spec.MemoryMiB > most || (spec.MemoryMiB-m.MemoryMiB)%blockMiB != 0 {
		return shape{}, &vmm.MismatchError{
			Field: "memory_mib",
			Image: fmt.Sprintf("%d to %d", m.MemoryMiB, most),
			Host:  str(spec.MemoryMiB),
		}
	}
	if n := len(spec.Disks); n < m.Disks || n > max(m.Disks, m.MaxDisks) {
		return shape{}, &vmm.MismatchError{
			Field: "disks",
			Image: fmt.Sprintf("%d to %d", m.Disks, max(m.Disks, m.MaxDisks)),
			Host:  str(n),
		}
	}
	data, err := vmmproc.ReadChecked(image, shapeName, maxShape)
	if err != nil {
		return shape{}, err
	}
	var s shape
	if err := json.Unmarshal(data, &s); err != nil {
		return shape{}, fmt.Errorf("%s: %w", filepath.Join(image.Dir, shapeName), err)
	}
	return s, s.check(spec, m)
}

// check checks the shape of an image against a spec and the image's manifest.
func (s shape) check(spec vmm.Spec, m vmm.Manifest) error {
	if s.BaseMiB < 1 || s.HotplugMiB < 0 || s.BaseMiB > 1<<24 || s.HotplugMiB > 1<<24 || m.MemoryMiB < s.BaseMiB ||
		s.BaseMiB+s.HotplugMiB < max(m.MemoryMiB, m.MaxMemoryMiB) ||
		len(s.ReadOnly) < max(m.Disks, m.MaxDisks) ||
		len(s.ReadOnly) > maxDrives {
		return errors.New("the image's shape.json is damaged")
	}
	for i, disk := range spec.Disks {
		if disk.ReadOnly != s.ReadOnly[i] {
			return &vmm.MismatchError{
				Field: fmt.Sprintf("read-only of disk %d", i),
				Image: strconv.FormatBool(s.ReadOnly[i]), Host: strconv.FormatBool(disk.ReadOnly),
			}
		}
	}
	return nil
}

// writeImage completes an image in dir, which already holds the memory file. When it returns, all
// files but the memory file are durable.
func writeImage(dir string, m vmm.Manifest, s shape, state []byte) (vmm.Image, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return vmm.Image{}, err
	}
	return vmmproc.WriteImage(
		dir,
		m,
		s.memoryBytes(),
		vmmproc.Part{Name: vmmproc.StateName, Data: state},
		vmmproc.Part{Name: shapeName, Data: text},
	)
}

// openMemory opens the memory file of an image and checks its size.
func openMemory(image vmm.Image, s shape) (*os.File, error) {
	f, err := os.Open(filepath.Join(image.Dir, vmmproc.MemoryName))
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != s.memoryBytes() {
		err = fmt.Errorf("%s is damaged: it has %d bytes, want %d", f.Name(), st.Size(), s.memoryBytes())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
