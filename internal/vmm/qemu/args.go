package qemu

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/vmm"
)

// machineFormat is the version of the virtual hardware that arguments builds. Change it with every
// change that is visible to a guest or its device state. Images with another format are refused.
const machineFormat = "microvm-3"

// machineName returns the manifest's description of the virtual hardware.
func machineName(acpi bool) string {
	if acpi {
		return machineFormat + " acpi"
	}
	return machineFormat
}

// translationMiB is the size of QEMU's translation cache (tb-size), which is memory beside the
// guest's. QEMU flushes the whole cache when it is full, including the translations of the JIT
// warm-up; those of the template base need 100 MiB.
const translationMiB = 256

// consoleBytes is the size of the ring buffer for the guest's console in the monitor.
const consoleBytes = 64 << 10

// launchSpec holds all parameters of the command line. Descriptors are numbers in the monitor; 0
// means none.
type launchSpec struct {
	id        string
	version   version
	accel     vmm.Accelerator
	vcpus     int
	memoryMiB int
	acpi      bool
	monitor   int
	channel   int
	memory    string // path in the monitor
	incoming  int    // 0 for Boot
	disks     []diskFD
	tap       int
	mac       net.HardwareAddr
	kernel    string // path in the monitor, as is initramfs
	initramfs string
	cmdline   string
}

// diskFD holds a disk's read-only descriptor and, if not 0, a read-write descriptor. QEMU opens a
// disk read-only first, and again when a device wants to write. From an fd set it takes the
// descriptor with the requested access mode.
type diskFD struct {
	read, write int
	volatile    bool
	rate        vmm.Rate
}

// arguments returns the command line of a monitor.
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
		// The output of xen-save-devices-state, which Capture uses, has no configuration section.
		"-global", "migration.send-configuration=off",
		// When the guest exits, QEMU stays until its console is read.
		"-action", "reboot=shutdown,shutdown=pause",
		"-chardev", "socket,id=q,fd=" + strconv.Itoa(s.monitor) + ",server=on,wait=off",
		"-mon", "chardev=q,mode=control",
		"-chardev", "ringbuf,id=console,size=" + strconv.Itoa(consoleBytes),
		"-serial", "chardev:console",
		"-device", "virtio-serial-device,max_ports=2",
		// This process connects before QEMU listens. If QEMU accepted the connection after creating
		// the devices, it would notify the guest of it in the guest's first moments.
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
		drive += errorPolicy + throttleOptions(d.rate)
		args = append(args,
			"-drive", drive,
			"-device", "virtio-blk-device,drive="+id)
	}
	if s.tap != 0 {
		// A restored guest keeps its network slot's addresses and need not announce itself.
		// Announcing would require QEMU to translate about 2,000 blocks of guest kernel code.
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

// cpuModel returns the model with all features except two that are slow under translation. With
// ERMS or FSRM a guest clears and copies pages with byte-wise string instructions. Under TCG each
// byte costs as much as a step of eight bytes: 10 ns, measured.
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

// hasReadOnlyMemory reports whether QEMU can open a memory file read-only and map it privately with
// write access. Older versions need a writable file, although they do not write to it.
func (v version) hasReadOnlyMemory() bool { return v.atLeast(8, 2) }

// kernelCmdline returns the kernel command line: what every guest needs, and then the caller's
// part.
func kernelCmdline(tscKHz int64, more string) string {
	words := []string{
		"console=ttyS0", "reboot=t", "panic=-1", "no_timer_check",
		// The TSC is the host's. The guest has no clock to measure it with, and must not distrust
		// it.
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

// fdPath returns a path for an inherited descriptor. Opening it requires permission on the file but
// on no directory.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}
