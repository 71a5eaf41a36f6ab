package qemu

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/durable"
	"github.com/pandastack/pandastack/internal/proc"
)

// record is what a later process of ours has to know of a monitor.
type record struct {
	Process proc.Identity `json:"process"`
	Memory  fileKey       `json:"memory"`
	// MemoryPath is where the image's memory was at the start. A mapping shows the path that the monitor used.
	MemoryPath string  `json:"memory_path,omitempty"`
	Mapped     fileKey `json:"mapped,omitzero"` // another file with the same content; zero: none
	Cold       bool    `json:"cold"`            // memory is its own file, mapped shared
	ACPI       bool    `json:"acpi"`
	DiskBytes  []int64 `json:"disk_bytes"`
}

// mapped is the file that the monitor maps as its memory.
func (r record) mapped() fileKey {
	if r.Mapped != (fileKey{}) {
		return r.Mapped
	}
	return r.Memory
}

// writeRecord puts r into dir: whole, but not durably, since no monitor outlives a crash of the host.
func writeRecord(dir string, r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, recordFile)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readRecord answers false where there is none, or one that a crash of the host left unreadable.
func readRecord(dir string) (record, bool, error) {
	var r record
	err := durable.ReadJSON(filepath.Join(dir, recordFile), &r)
	var access *fs.PathError
	switch {
	case err == nil:
		return r, true, nil
	case errors.As(err, &access) && !errors.Is(err, fs.ErrNotExist):
		return record{}, false, err
	}
	return record{}, false, nil
}

// marker is the environment variable that names the directory a monitor belongs to. It finds monitors
// that were started just before this program died, before their record was written.
func marker(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return "PANDASTACK_MONITOR=" + abs, nil
}

// removeFiles takes away what a monitor needed in dir. The console stays.
func removeFiles(dir string) error {
	var all error
	for _, name := range []string{recordFile, recordFile + ".new", monitorSocket, channelSocket, memoryFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, err)
		}
	}
	return all
}
