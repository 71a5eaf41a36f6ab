package qemu

import (
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// record is what a later process of ours has to know of a monitor.
type record struct {
	Process proc.Identity   `json:"process"`
	Memory  vmmproc.FileKey `json:"memory"`
	// MemoryPath is where the image's memory was at the start. A mapping shows the path that the monitor used.
	MemoryPath string          `json:"memory_path,omitempty"`
	Mapped     vmmproc.FileKey `json:"mapped,omitzero"` // another file with the same content; zero: none
	// Content is the inode of the content of the process that the monitor was made of; 0: of none.
	Content     uint64 `json:"content,omitempty"`
	ContentPath string `json:"content_path,omitempty"`
	// ClockOffset is how much longer than it has the host seems to have run by the monitor's clock.
	ClockOffset time.Duration `json:"ahead,omitempty"`
	Cold        bool          `json:"cold"` // memory is its own file, mapped shared
	ACPI        bool          `json:"acpi"`
	DiskBytes   []int64       `json:"disk_bytes"`
	DiskRates   []vmm.Rate    `json:"disk_rates,omitempty"`
}

// mapped is the file that the monitor maps as its memory.
func (r record) mapped() vmmproc.FileKey {
	if r.Mapped != (vmmproc.FileKey{}) {
		return r.Mapped
	}
	return r.Memory
}

// removeFiles takes away what a monitor needed in dir. The console stays.
func removeFiles(dir string) error {
	return vmmproc.Remove(dir, monitorSocket, channelSocket, memoryFile, kernelFile)
}
