package qemu

import (
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// record is what a later host agent must know about a monitor.
type record struct {
	Process proc.Identity   `json:"process"`
	Memory  vmmproc.FileKey `json:"memory"`
	// MemoryPath is the path of the image's memory file at the start. /proc/PID/maps shows the path
	// in the monitor's jail.
	MemoryPath string          `json:"memory_path,omitempty"`
	Mapped     vmmproc.FileKey `json:"mapped,omitzero"` // another file with the same content; zero: none
	// Content is the inode of the pages file that the monitor was restored with; 0: it was not
	// restored from a checkpoint.
	Content     uint64 `json:"content,omitempty"`
	ContentPath string `json:"content_path,omitempty"`
	// Delta is the inode of the delta to the pages file; 0: there is none.
	Delta uint64 `json:"delta,omitempty"`
	// ClockOffset is how far the monitor's clock since boot is ahead of the host's.
	ClockOffset time.Duration `json:"ahead,omitempty"`
	Cold        bool          `json:"cold"` // the machine was booted: its memory is its own file, mapped shared
	ACPI        bool          `json:"acpi"`
	DiskBytes   []int64       `json:"disk_bytes"`
	DiskRates   []vmm.Rate    `json:"disk_rates,omitempty"`
}

// mapped identifies the file that the monitor maps as the guest's memory.
func (r record) mapped() vmmproc.FileKey {
	if r.Mapped != (vmmproc.FileKey{}) {
		return r.Mapped
	}
	return r.Memory
}

// removeFiles removes the monitor's files from dir, but keeps the console.
func removeFiles(dir string) error {
	return vmmproc.Remove(dir, monitorSocket, channelSocket, memoryFile, kernelFile, baseFile)
}
