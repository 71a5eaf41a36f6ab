package qemu

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
)

// machineFormat names the virtual hardware that arguments builds. Change it with every change there that
// a guest or its device state can see: images of another format are refused.
const machineFormat = "microvm-3"

// machineName is what a manifest says of the hardware.
func machineName(acpi bool) string {
	if acpi {
		return machineFormat + " acpi"
	}
	return machineFormat
}

// translationMiB bounds QEMU's cache of translated code, which is memory beside the guest's. QEMU empties a cache
// that is full, with all that a rehearsal left in it: that of the template base is 100 MiB.
const translationMiB = 256

// consoleBytes is how much of the guest's console is kept: the last of it, in the monitor.
const consoleBytes = 64 << 10

// launchSpec is all that the command line depends on. Descriptors are numbers in the monitor; 0 is none.
type launchSpec struct {
	id        string
	version   version
	accel     vmm.Accelerator
	vcpus     int
	memoryMiB int
	acpi      bool
	monitor   int
	channel   int
	memory    string // path, in the monitor
	incoming  int    // 0: Boot
	disks     []diskFD
	tap       int
	mac       net.HardwareAddr
	kernel    string // path, in the monitor; so is the next
	initramfs string
	cmdline   string
}

// diskFD is a disk's descriptor for reading and, unless that is 0, one for writing too: QEMU opens a disk
// for reading and again when a device wants to write, and takes of a set the descriptor of that mode.
type diskFD struct {
	read, write int
	volatile    bool
	rate        vmm.Rate
}

// arguments is the command line of a monitor.
func (s launchSpec) arguments() []string {
	args := []string{
		"-name", s.id,
		"-nodefaults", "-no-user-config", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-M", "microvm,acpi=" + onOff(s.acpi) + ",rtc=on,pit=on,pic=on,isa-serial=on,suppress-vmdesc=on," +
			"mem-merge=off,dump-guest-core=off,memory-backend=m0",
		"-accel", s.accelerator(),
		"-cpu", s.cpuModel(),
		"-smp", strconv.Itoa(s.vcpus),
		"-m", strconv.Itoa(s.memoryMiB) + "M",
		"-object", s.memoryBackend(),
		// The state that Capture takes has no configuration section.
		"-global", "migration.send-configuration=off",
		// A guest that ends stays long enough for its console to be read.
		"-action", "reboot=shutdown,shutdown=pause",
		"-chardev", "socket,id=q,fd=" + strconv.Itoa(s.monitor) + ",server=on,wait=off",
		"-mon", "chardev=q,mode=control",
		"-chardev", "ringbuf,id=console,size=" + strconv.Itoa(consoleBytes),
		"-serial", "chardev:console",
		"-device", "virtio-serial-device,max_ports=2",
		// We are connected before it listens. A connection that it took up after the devices were made, the
		// guest would be told of in its first moments.
		"-chardev", "socket,id=agent,fd=" + strconv.Itoa(s.channel) + ",server=on,wait=on",
		"-device", "virtserialport,chardev=agent,name=agent.0",
	}
	for i, d := range s.disks {
		id := "d" + strconv.Itoa(i)
		args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", d.read, i+1))
		if d.write != 0 {
			args = append(args, "-add-fd", fmt.Sprintf("fd=%d,set=%d", d.write, i+1))
		}
		drive := fmt.Sprintf(
			"id=%s,if=none,format=raw,file=/dev/fdset/%d,read-only=%s,discard=unmap",
			id,
			i+1,
			onOff(d.write == 0),
		)
		if d.volatile {
			drive += ",cache.no-flush=on" // the guest still sees a disk with a write-back cache
		}
		drive += throttleOptions(d.rate)
		args = append(args,
			"-drive", drive,
			"-device", "virtio-blk-device,drive="+id)
	}
	if s.tap != 0 {
		// A restored guest has moved nowhere that a neighbour could know of: it need not announce itself, which
		// is some 2,000 blocks of its kernel's code to be translated.
		args = append(args, "-netdev", "tap,id=n0,fd="+strconv.Itoa(s.tap),
			"-device", "virtio-net-device,netdev=n0,guest_announce=off,mac="+s.mac.String())
	}
	if s.incoming != 0 {
		return append(args, "-incoming", "fd:"+strconv.Itoa(s.incoming))
	}
	args = append(args, "-S", "-kernel", s.kernel, "-append", s.cmdline)
	if s.initramfs != "" {
		args = append(args, "-initrd", s.initramfs)
	}
	return args
}

func (s launchSpec) accelerator() string {
	if s.accel == vmm.KVM {
		return "kvm"
	}
	return "tcg,tb-size=" + strconv.Itoa(translationMiB)
}

// cpuModel is every feature there is, but for two that are a loss under translation. A guest that is told
// that strings of bytes are moved and stored fast (ERMS, FSRM) clears pages and copies in steps of one byte,
// each of which costs as much as one of eight: 10 ns a byte, measured.
func (s launchSpec) cpuModel() string {
	if s.accel == vmm.KVM {
		return "max"
	}
	return "max,erms=off,fsrm=off"
}

func (s launchSpec) memoryBackend() string {
	m := fmt.Sprintf("memory-backend-file,id=m0,size=%dM,mem-path=%s", s.memoryMiB, s.memory)
	if s.incoming == 0 {
		return m + ",share=on"
	}
	m += ",share=off"
	if s.version.hasReadOnlyMemory() {
		m += ",readonly=on,rom=off"
	}
	return m
}

// hasReadOnlyMemory tells whether QEMU can open a memory file read-only and map it privately with write
// access. Older ones need a file they may write to, though they do not.
func (v version) hasReadOnlyMemory() bool { return v.atLeast(8, 2) }

// kernelCmdline is what every guest kernel is told, before what the caller adds.
func kernelCmdline(tscKHz int64, more string) string {
	words := []string{
		"console=ttyS0", "reboot=t", "panic=-1", "no_timer_check",
		// The counter is the host's: the guest has no clock to measure it by, and must not distrust it.
		"tsc=reliable",
	}
	if tscKHz > 0 {
		words = append(words, "tsc_early_khz="+strconv.FormatInt(tscKHz, 10))
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(words, " ")
}

// fdPath names an inherited descriptor as a path: opening it needs rights on the file alone, on no
// directory.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
