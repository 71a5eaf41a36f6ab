package machine

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/pandastack/pandastack/internal/contract/hostapi"
)

const mib = 1 << 20

// HostMemory returns how much memory the host has, and how much of it can be used without swapping.
type HostMemory func() (total, available int64, err error)

// ReadMeminfo is HostMemory of this computer.
func ReadMeminfo() (total, available int64, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(fields[1], 10, 64)
		switch {
		case fields[0] == "MemTotal:" && err == nil:
			total = kib << 10
		case fields[0] == "MemAvailable:" && err == nil:
			available = kib << 10
		}
	}
	if total == 0 || available == 0 {
		return 0, 0, fmt.Errorf("/proc/meminfo lacks MemTotal or MemAvailable")
	}
	return total, available, nil
}

// Admission decides by the reserved memory whether a machine may start.
// A machine reserves its guest's memory and the monitor's overhead. Machines share the memory of the image that they
// run on, so few ever use what they reserved: Share of a reservation is expected to be used, and the part of that
// which is not used yet must be available now beyond the reserve. All reservations together stay within the host's
// memory, less the reserve, times Overcommit. While the host is short of memory, none is made.
type Admission struct {
	ReserveMiB  int     // of the host, never given to machines; default 768
	OverheadMiB int     // of a monitor beside its guest's memory; default 48, as measured with QEMU
	Share       float64 // default 0.2
	Overcommit  float64 // default 1.5
	// MaxPressure is the memory pressure, in percent, at and above which the host is short of memory; 0: none is.
	MaxPressure float64
}

// DefaultOvercommit is the default of Admission.Overcommit.
const DefaultOvercommit = 1.5

func (a Admission) withDefaults() Admission {
	if a.ReserveMiB == 0 {
		a.ReserveMiB = 768
	}
	if a.OverheadMiB == 0 {
		a.OverheadMiB = 48
	}
	if a.Share == 0 {
		a.Share = 0.2
	}
	if a.Overcommit == 0 {
		a.Overcommit = DefaultOvercommit
	}
	return a
}

// reservation is the memory of one machine, in bytes.
type reservation struct {
	guest int64 // memory and overhead
	used  int64 // of that, as last measured
}

// ledger has the reservations of machines that run or are being started.
type ledger struct {
	adm      Admission
	host     HostMemory
	pressure MemoryPressure

	mu           sync.Mutex
	reservations map[hostapi.MachineID]reservation
}

// expectedGrowth returns how much more of a reservation is expected to be used.
func (a Admission) expectedGrowth(p reservation) int64 {
	return max(0, int64(float64(p.guest)*a.Share)-p.used)
}

// unreserved returns how many bytes of guest memory (with overhead) can still be reserved.
func (a Admission) unreserved(total, available int64, promises map[hostapi.MachineID]reservation) int64 {
	free := available - int64(a.ReserveMiB)*mib
	sum := int64(0)
	for _, p := range promises {
		free -= a.expectedGrowth(p)
		sum += p.guest
	}
	limit := int64(float64(total-int64(a.ReserveMiB)*mib)*a.Overcommit) - sum
	return max(0, min(limit, int64(float64(free)/a.Share)))
}

// reserve reserves memory for a machine, or returns ErrNoCapacity with the numbers. A second reservation of a machine
// replaces the first.
func (l *ledger) reserve(id hostapi.MachineID, memoryMiB int) error {
	total, available, err := l.host()
	if err != nil {
		return fmt.Errorf("admit machine %s: %w", id, err)
	}
	if err := l.checkPressure(); err != nil {
		return fmt.Errorf("admit machine %s: %w", id, err)
	}
	want := int64(memoryMiB+l.adm.OverheadMiB) * mib
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reservations, id)
	if room := l.adm.unreserved(total, available, l.reservations); want > room {
		return fmt.Errorf("machine %s needs %d MiB of memory, and %d MiB can still be reserved "+
			"(%d MiB available of %d, %d machines, %d MiB reserved): %w", id, want/mib, room/mib,
			available/mib, total/mib, len(l.reservations), l.adm.ReserveMiB, hostapi.ErrNoCapacity)
	}
	l.reservations[id] = reservation{guest: want}
	return nil
}

// grant reserves memory for a machine that has it already.
func (l *ledger) grant(id hostapi.MachineID, memoryMiB int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reservations[id] = reservation{guest: int64(memoryMiB+l.adm.OverheadMiB) * mib}
}

func (l *ledger) release(id hostapi.MachineID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.reservations, id)
}

// setUsed records how much of its reservation a machine uses.
func (l *ledger) setUsed(id hostapi.MachineID, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.reservations[id]; ok {
		p.used = bytes
		l.reservations[id] = p
	}
}

// Memory is the memory of the host and what machines were promised of it, in MiB.
type Memory struct {
	TotalMiB     int
	AvailableMiB int     // that can be used now without swapping
	PromisedMiB  int     // reserved for machines
	FreeMiB      int     // that can still be reserved; at most what is available
	Pressure     float64 // in percent; see MemoryPressure
	// Short: nothing is admitted until others need less.
	Short bool
}

// memory returns the state of the host's memory.
func (l *ledger) memory() (Memory, error) {
	total, available, err := l.host()
	if err != nil {
		return Memory{}, err
	}
	pressure, err := l.pressure()
	if err != nil {
		return Memory{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := Memory{TotalMiB: int(total / mib), AvailableMiB: int(available / mib), Pressure: pressure}
	for _, p := range l.reservations {
		out.PromisedMiB += int(p.guest / mib)
	}
	out.FreeMiB = int(min(available, l.adm.unreserved(total, available, l.reservations)) / mib)
	out.Short = l.adm.isPressed(pressure) || available < int64(l.adm.ReserveMiB)*mib/2
	return out, nil
}
