package qemu

import (
	"path/filepath"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/lib/proc"
	"github.com/pandastack/pandastack/internal/vmm"
)

// firmware are the files that QEMU may load into a machine of ours.
var firmware = []string{"qboot.rom", "bios-microvm.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"}

// jailDir is where a monitor in a jail finds files of its machine that it insists on opening by a path.
const jailDir = "/machine/"

// jailSpec is what a monitor in a jail is given besides the descriptors that it inherits.
func (d *Driver) jailSpec(binds []vmm.Bind) vmm.JailSpec {
	c := vmm.JailSpec{Program: d.config.Binary, Binds: binds}
	// Where Debian's build looks, and any build: beside its own programs.
	for _, dir := range []string{"/usr/share/qemu", "/usr/share/seabios", filepath.Join(d.config.Binary, "../../share/qemu")} {
		for _, name := range firmware {
			c.Data = append(c.Data, filepath.Join(dir, name))
		}
	}
	if d.config.Accelerator == vmm.KVM {
		c.Devices = []string{"/dev/kvm"}
	}
	return c
}

// jailCommand makes command start in a jail, where there is one.
func (d *Driver) jailCommand(
	confine vmm.Confine,
	binds []vmm.Bind,
	command proc.Command,
	ahead time.Duration,
) proc.Command {
	if confine.Jail == nil {
		if ahead != 0 {
			command.Fork = proc.ForkAhead(ahead)
		}
		return command
	}
	command.Groups = nil // the devices of a jail are for everybody in it
	command.Fork = func(_ string, argv []string, attr *syscall.ProcAttr) (int, error) {
		cell := vmm.JailSpec{Program: command.Path, Binds: binds}
		if command.Path == d.config.Binary {
			cell = d.jailSpec(binds)
		}
		cell.BootClockOffset = ahead
		return confine.Jail.Start(cell, argv, attr)
	}
	return command
}
