package qemu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// writeImage completes an image in dir, which already holds the memory file, with device state,
// memory delta (may be nil) and manifest. When it returns, all of these are durable.
func writeImage(dir string, m vmm.Manifest, state []byte, delta *memDelta) (vmm.Image, error) {
	parts := []vmmproc.Part{{Name: vmmproc.StateName, Data: state}}
	if delta != nil {
		data, err := json.Marshal(delta)
		if err != nil {
			return vmm.Image{}, err
		}
		parts = append(parts, vmmproc.Part{Name: memDeltaName, Data: data})
	}
	return vmmproc.WriteImage(dir, m, int64(m.MemoryMiB)<<20, parts...)
}

// openedImage holds the open files of an image.
type openedImage struct {
	memory     *os.File        // to be mapped: the image's memory file, a view of it, or the base of its memory delta
	key        vmmproc.FileKey // of the image's memory file or the base of its memory delta
	mapped     vmmproc.FileKey // of memory
	fullMemory *os.File        // base of the machine's captures if that is not memory; otherwise nil
	altMemory  vmmproc.FileKey // captures with this base fit as well; zero: none
	overlay    *overlay        // to be copied into memory; nil: nothing
	state      []byte
}

// close closes the memory files.
func (o openedImage) close() error {
	var all error
	for _, f := range []*os.File{o.memory, o.fullMemory} {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
	}
	return all
}

// openImage verifies and opens the files of an image.
func openImage(image vmm.Image, writable bool) (o openedImage, err error) {
	m := image.Manifest
	if o.state, err = vmmproc.ReadChecked(image, vmmproc.StateName, maxState); err != nil {
		return openedImage{}, err
	}
	flags := os.O_RDONLY
	if writable {
		flags = os.O_RDWR
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close())
		}
	}()
	size := int64(m.MemoryMiB) << 20
	if o.memory, o.key, err = openMemory(filepath.Join(image.Dir, memoryFile), flags, size); err != nil {
		return o, err
	}
	o.mapped = o.key
	if image.Memory != nil {
		o.fullMemory = o.memory
		if o.memory, o.mapped, err = openMemory(image.Memory.File(), flags, size); err != nil {
			return o, err
		}
	}
	// Memory that is still being downloaded uses no memory delta: all of the delta would have to
	// arrive first.
	if _, ok := vmmproc.FileOf(m, memDeltaName); !ok || image.Memory != nil {
		return o, nil
	}
	data, err := vmmproc.ReadChecked(image, memDeltaName, maxState)
	if err != nil {
		return o, err
	}
	delta, err := parseMemDelta(data, size)
	if err != nil {
		return o, err
	}
	return o, o.useDelta(delta, flags)
}

// openMemory opens a memory file and checks its size.
func openMemory(path string, flags int, size int64) (*os.File, vmmproc.FileKey, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, vmmproc.FileKey{}, err
	}
	st, err := f.Stat()
	if err == nil && st.Size() != size {
		err = fmt.Errorf("%s is damaged: it has %d bytes, want %d", path, st.Size(), size)
	}
	key, keyErr := vmmproc.KeyOf(f)
	if err := errors.Join(err, keyErr); err != nil {
		return nil, vmmproc.FileKey{}, errors.Join(err, f.Close())
	}
	return f, key, nil
}

// useDelta replaces the image's memory file by the base of its memory delta, if the base still
// exists. If it does not, a capture with that base fits as well: it contains the delta, because a
// page that is private stays private.
func (o *openedImage) useDelta(delta *memDelta, flags int) error {
	below, err := delta.open(flags)
	if err != nil {
		return err
	}
	if below == nil {
		o.altMemory = delta.File
		return nil
	}
	o.overlay = &overlay{o.memory, o.key, delta.spans()}
	o.memory, o.key, o.mapped = below, delta.File, delta.File
	whole := o.fullMemory
	if o.fullMemory = nil; whole != nil {
		return whole.Close()
	}
	return nil
}

// tscTolerance is the allowed difference of two measurements of the same TSC, in parts per million.
const tscTolerance = 500

// checkManifest returns an error if an image cannot be restored. want describes this host and the
// spec.
func checkManifest(m, want vmm.Manifest) error {
	str := strconv.Itoa
	for _, f := range []struct{ field, image, host string }{
		{"version", str(m.Version), str(want.Version)},
		{"driver", m.Driver, want.Driver},
		{"QEMU version", m.VMM, want.VMM},
		{"accelerator", string(m.Accelerator), string(want.Accelerator)},
		{"processor", m.CPU, want.CPU},
		{"vcpus", str(m.VCPUs), str(want.VCPUs)},
		{"memory_mib", str(m.MemoryMiB), str(want.MemoryMiB)},
		{"disks", str(m.Disks), str(want.Disks)},
		{"nic", strconv.FormatBool(m.NIC), strconv.FormatBool(want.NIC)},
	} {
		if f.image != f.host {
			return &vmm.MismatchError{Field: f.field, Image: f.image, Host: f.host}
		}
	}
	if words := []string{machineName(false), machineName(true)}; !slices.Contains(words, m.Machine) {
		return &vmm.MismatchError{Field: "machine", Image: m.Machine, Host: strings.Join(words, " or ")}
	}
	if diff := m.TSCkHz - want.TSCkHz; max(diff, -diff)*1e6 > want.TSCkHz*tscTolerance {
		return &vmm.MismatchError{
			Field: "tsc_khz", Image: strconv.FormatInt(m.TSCkHz, 10), Host: strconv.FormatInt(want.TSCkHz, 10),
		}
	}
	return nil
}

// isELF reports whether a kernel is an ELF file.
func isELF(f *os.File) (bool, error) {
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 0); err != nil {
		return false, fmt.Errorf("kernel %s: %w", f.Name(), err)
	}
	return bytes.Equal(magic, []byte("\x7fELF")), nil
}
