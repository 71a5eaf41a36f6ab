package qemu

import (
	"path/filepath"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/os/jail"
	"github.com/pandastack/pandastack/internal/vmm"
)

// firmware are the files that QEMU may load for the microvm machine type.
var firmware = []string{"qboot.rom", "bios-microvm.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"}

// jailDir is the directory in a jail with the machine's files that QEMU opens by path.
const jailDir = "/machine/"

// jailSpec returns what a monitor gets in a jail in addition to its inherited descriptors.
func (d *Driver) jailSpec(binds []jail.Bind) jail.Spec {
	c := jail.Spec{Program: d.config.Binary, Binds: binds, Syscalls: d.syscalls}
	// The directories of Debian's build, and that beside the program of any build.
	for _, dir := range []string{"/usr/share/qemu", "/usr/share/seabios",
		filepath.Join(d.config.Binary, "../../share/qemu")} {
		for _, name := range firmware {
			c.Data = append(c.Data, filepath.Join(dir, name))
		}
	}
	if d.config.Accelerator == vmm.KVM {
		c.Devices = []string{"/dev/kvm"}
	}
	return c
}

// jailCommand makes command start in the jail, if there is one.
func (d *Driver) jailCommand(
	confine vmm.Confine,
	binds []jail.Bind,
	command proc.Command,
	ahead time.Duration,
) proc.Command {
	if confine.Jail == nil {
		if ahead != 0 {
			command.Fork = proc.ForkAhead(ahead)
		}
		return command
	}
	command.Groups = nil // any user in a jail may open its devices
	command.Fork = func(_ string, argv []string, attr *syscall.ProcAttr) (int, error) {
		spec := jail.Spec{Program: command.Path, Binds: binds, Syscalls: d.stubSyscalls}
		if command.Path == d.config.Binary {
			spec = d.jailSpec(binds)
		}
		spec.BootClockOffset = ahead
		return confine.Jail.Start(spec, argv, attr)
	}
	return command
}
