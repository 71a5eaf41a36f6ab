package qemu

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// Files of an image beside its memory.
const (
	stateName    = "state"
	manifestName = "manifest.json"
)

// writeImage completes dir, which holds the memory, with state and manifest; then all of it is durable.
func writeImage(dir string, m vmm.Manifest, state []byte) (vmm.Image, error) {
	sum := sha256.Sum256(state)
	m.Created = time.Now().UTC()
	m.Files = []vmm.File{
		{Name: memoryFile, Bytes: int64(m.MemoryMiB) << 20},
		{Name: stateName, Bytes: int64(len(state)), SHA256: hex.EncodeToString(sum[:])},
	}
	if err := durable.WriteFile(filepath.Join(dir, stateName), state, 0o444); err != nil {
		return vmm.Image{}, err
	}
	if err := durable.WriteJSON(filepath.Join(dir, manifestName), m); err != nil {
		return vmm.Image{}, err
	}
	return vmm.Image{Dir: dir, Manifest: m}, nil
}

// opened is an image ready to be mapped.
type opened struct {
	memory *os.File
	key    fileKey
	state  []byte
}

// openImage checks the image's files and opens them.
func openImage(image vmm.Image, writable bool) (_ opened, err error) {
	m := image.Manifest
	files := map[string]vmm.File{}
	for _, f := range m.Files {
		files[f.Name] = f
	}
	path := filepath.Join(image.Dir, stateName)
	state, err := readBounded(path, maxState)
	if err != nil {
		return opened{}, err
	}
	if sum := sha256.Sum256(state); hex.EncodeToString(sum[:]) != files[stateName].SHA256 {
		return opened{}, fmt.Errorf("%s is damaged: its checksum is not the manifest's", path)
	}
	flags := os.O_RDONLY
	if writable {
		flags = os.O_RDWR
	}
	memory, err := os.OpenFile(filepath.Join(image.Dir, memoryFile), flags, 0)
	if err != nil {
		return opened{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, memory.Close())
		}
	}()
	st, err := memory.Stat()
	if err != nil {
		return opened{}, err
	}
	if want := int64(m.MemoryMiB) << 20; st.Size() != want {
		return opened{}, fmt.Errorf("%s is damaged: it has %d bytes, want %d", memory.Name(), st.Size(), want)
	}
	key, err := keyOf(memory)
	if err != nil {
		return opened{}, err
	}
	return opened{memory, key, state}, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%s is damaged: larger than %d bytes", path, limit)
	}
	return data, nil
}

// tscTolerance is how far two measurements of the same counter may lie apart, in parts of a million.
const tscTolerance = 500

// check refuses an image that the monitor, as want describes it for this host and spec, could not restore.
func check(m, want vmm.Manifest) error {
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
	if words := []string{machineWords(false), machineWords(true)}; !slices.Contains(words, m.Machine) {
		return &vmm.MismatchError{Field: "machine", Image: m.Machine, Host: strings.Join(words, " or ")}
	}
	if diff := m.TSCkHz - want.TSCkHz; max(diff, -diff)*1e6 > want.TSCkHz*tscTolerance {
		return &vmm.MismatchError{
			Field: "tsc_khz", Image: strconv.FormatInt(m.TSCkHz, 10), Host: strconv.FormatInt(want.TSCkHz, 10),
		}
	}
	return nil
}

// elf tells whether the kernel at path is in ELF form.
func elf(f *os.File) (bool, error) {
	magic := make([]byte, 4)
	if _, err := f.ReadAt(magic, 0); err != nil {
		return false, fmt.Errorf("kernel %s: %w", f.Name(), err)
	}
	return bytes.Equal(magic, []byte("\x7fELF")), nil
}
