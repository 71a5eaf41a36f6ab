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

// writeImage completes dir, which holds the memory, with state, layer (nil: none) and manifest; then all
// of it is durable.
func writeImage(dir string, m vmm.Manifest, state []byte, l *memDelta) (vmm.Image, error) {
	parts := []vmmproc.Part{{Name: vmmproc.StateName, Data: state}}
	if l != nil {
		data, err := json.Marshal(l)
		if err != nil {
			return vmm.Image{}, err
		}
		parts = append(parts, vmmproc.Part{Name: memDeltaName, Data: data})
	}
	return vmmproc.WriteImage(dir, m, int64(m.MemoryMiB)<<20, parts...)
}

// openedImage is an image ready to be mapped.
type openedImage struct {
	memory     *os.File        // to be mapped: the image's own, a view of it, or the one its layer lies over
	key        vmmproc.FileKey // of the image's own memory, or the one its layer lies over
	mapped     vmmproc.FileKey // of memory
	fullMemory *os.File        // what a capture of the machine lies over where that is not memory; nil: it is
	altMemory  vmmproc.FileKey // a capture over this one fits, too; zero: none
	overlay    *overlay        // what to add to memory; nil: nothing
	state      []byte
}

// close closes what is to be mapped and what stands for it.
func (o openedImage) close() error {
	var all error
	for _, f := range []*os.File{o.memory, o.fullMemory} {
		if f != nil {
			all = errors.Join(all, f.Close())
		}
	}
	return all
}

// openImage checks the image's files and opens them.
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
	// What streams lies over nothing here: its difference would have to come first, all of it.
	if _, ok := vmmproc.FileOf(m, memDeltaName); !ok || image.Memory != nil {
		return o, nil
	}
	data, err := vmmproc.ReadChecked(image, memDeltaName, maxState)
	if err != nil {
		return o, err
	}
	l, err := parseMemDelta(data, size)
	if err != nil {
		return o, err
	}
	return o, o.useDelta(l, flags)
}

// openMemory opens a file of a known size; nil with an error.
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

// useDelta puts the memory below the layer in place of the image's own, if it is still there. If not, a
// capture taken over it fits all the same: what it holds includes the layer, since a private page stays
// private.
func (o *openedImage) useDelta(l *memDelta, flags int) error {
	below, err := l.open(flags)
	if err != nil {
		return err
	}
	if below == nil {
		o.altMemory = l.File
		return nil
	}
	o.overlay = &overlay{o.memory, o.key, l.spans()}
	o.memory, o.key, o.mapped = below, l.File, l.File
	whole := o.fullMemory
	if o.fullMemory = nil; whole != nil {
		return whole.Close()
	}
	return nil
}

// tscTolerance is how far two measurements of the same counter may lie apart, in parts of a million.
const tscTolerance = 500

// checkManifest refuses an image that the monitor, as want describes it for this host and spec, could not restore.
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

// isELF tells whether the kernel at path is in ELF form.
func isELF(f *os.File) (bool, error) {
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 0); err != nil {
		return false, fmt.Errorf("kernel %s: %w", f.Name(), err)
	}
	return bytes.Equal(magic, []byte("\x7fELF")), nil
}
