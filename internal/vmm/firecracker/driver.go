package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Config configures a Driver.
type Config struct {
	Binary string // path; "": firecracker in PATH
	// Jailer is the path of Firecracker's jailer, which is then used instead of vmm.Confine.Jail.
	// If it is empty, the jailer is not used.
	Jailer string
	// Dir is the driver's directory for captures. It must be on the file system of machines and
	// images. New empties it, because no capture outlives the process that made it.
	Dir string
	// HotplugMemoryMiB is the amount of memory that can be hotplugged into machines booted here and
	// into all machines restored from them. It must be a multiple of 128; 0 means none.
	HotplugMemoryMiB int
	HotplugDisks     int  // the same for disks
	Console          bool // sends the guest's console to the monitor's log, which makes restores slower
	// Limit bounds each wait for a monitor: for its start, a response, or its exit. 0 means one
	// minute.
	Limit time.Duration
}

const defaultLimit = time.Minute

// Driver runs machines in Firecracker.
type Driver struct {
	config   Config
	version  fcapi.Version
	cpu      string
	groups   []uint32 // supplementary groups of a monitor: the group of /dev/kvm
	monitors *vmmproc.Registry

	mu     sync.Mutex
	serial int // number of captures so far
}

var _ vmm.Driver = (*Driver)(nil)

// Find returns the path and version of Firecracker. binary is a path, or "" for the one in PATH. The
// returned path is that of the program itself: the jailer names its directory after the target of a
// symbolic link.
func Find(ctx context.Context, binary string) (path string, v fcapi.Version, err error) {
	if binary == "" {
		binary = "firecracker"
	}
	if path, err = exec.LookPath(binary); err != nil {
		return "", v, fmt.Errorf("find Firecracker: %w", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", v, err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", v, fmt.Errorf("find Firecracker: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", v, fmt.Errorf("run %s --version: %w", path, err)
	}
	if v, err = fcapi.ParseVersion(string(out)); err != nil {
		return "", v, fmt.Errorf("run %s --version: %w", path, err)
	}
	return path, v, nil
}

// versionLimit bounds the run of a program that prints its version.
const versionLimit = 20 * time.Second

// New returns a driver for the installed Firecracker. It refuses releases with unacceptable faults
// with a *RefusedReleaseError. It does not check whether KVM works.
func New(ctx context.Context, config Config) (*Driver, error) {
	path, version, err := Find(ctx, config.Binary)
	if err != nil {
		return nil, err
	}
	if err := CheckRelease(version); err != nil {
		return nil, err
	}
	if config.HotplugMemoryMiB < 0 || config.HotplugMemoryMiB%slotMiB != 0 || config.HotplugDisks < 0 {
		return nil, fmt.Errorf(
			"firecracker: hotplug memory of %d MiB and %d hotplug disks: want a multiple of %d MiB, and no negative "+
				"numbers",
			config.HotplugMemoryMiB,
			config.HotplugDisks,
			slotMiB,
		)
	}
	if config.Jailer != "" {
		if err := CheckJailer(ctx, config.Jailer, path, version); err != nil {
			return nil, err
		}
	}
	config.Binary = path
	if config.Limit == 0 {
		config.Limit = defaultLimit
	}
	d := &Driver{config: config, version: version, monitors: vmmproc.NewRegistry(config.Limit, removeFiles)}
	if d.cpu, err = vmmproc.HostCPU(); err != nil {
		return nil, err
	}
	if st, err := os.Stat("/dev/kvm"); err == nil {
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			d.groups = []uint32{sys.Gid}
		}
	}
	return d, d.sweep()
}

// sweep empties the directory of captures.
func (d *Driver) sweep() error {
	if d.config.Dir == "" {
		return errors.New("firecracker: no directory is configured for captures")
	}
	if err := os.MkdirAll(d.config.Dir, 0o711); err != nil {
		return err
	}
	left, err := os.ReadDir(d.config.Dir)
	if err != nil {
		return err
	}
	for _, e := range left {
		if err := os.RemoveAll(filepath.Join(d.config.Dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// captureName returns a new path in the directory of captures.
func (d *Driver) captureName() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.serial++
	return filepath.Join(d.config.Dir, fmt.Sprintf("capture-%d", d.serial))
}

// Capabilities implements vmm.Driver.
func (d *Driver) Capabilities() vmm.Capabilities {
	return vmm.Capabilities{
		Name: driverName, Version: d.version.String(), Accelerator: vmm.KVM, Isolation: "microvm",
		Snapshot: true, LiveFork: true,
		Capture: vmm.CaptureFeatures{ClosesChannel: true},
		Memory:  vmm.MemoryFeatures{ServesPageFaults: true, HugePages: d.version.AtLeast(1, 17), Hotplug: true},
		Disks:   vmm.DiskFeatures{Rates: true, Hotplug: true},
		NIC:     vmm.NICFeatures{OpensTapByName: true, Rates: true},
	}
}

const driverName = "firecracker"

// manifest returns the manifest of a machine with this spec on this host. The caller sets
// DiskBytes.
func (d *Driver) manifest(spec vmm.Spec) vmm.Manifest {
	return vmm.Manifest{
		Version: vmm.ManifestVersion, Driver: driverName, VMM: d.version.String(), Accelerator: vmm.KVM,
		CPU: d.cpu, VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB, Disks: len(spec.Disks), NIC: spec.NIC != nil,
		Machine: machineFormat,
	}
}

// Boot implements vmm.Driver.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	if spec.Kernel == "" || len(spec.Disks) == 0 && spec.Initramfs == "" {
		return nil, errors.New("boot: the machine needs a kernel, and a disk or an initramfs")
	}
	m := newMachine(ctx, d, spec, d.manifest(spec), d.newShape(spec))
	err := m.launch(ctx, m.placeBootFiles)
	if err == nil {
		if err = m.boot(ctx); err != nil {
			err = errors.Join(m.WithExitReason(ctx, err), m.Discard(ctx))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	return m, nil
}

// Prepare implements vmm.Driver. It does not wait for the monitor; Load reports errors of its
// start.
func (d *Driver) Prepare(ctx context.Context, spec vmm.Spec, image vmm.Image) (vmm.Machine, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	sh, err := d.checkImage(spec, image)
	if err != nil {
		return nil, err
	}
	manifest := d.manifest(spec)
	manifest.MaxMemoryMiB, manifest.MaxDisks = image.Manifest.MaxMemoryMiB, image.Manifest.MaxDisks
	m := newMachine(ctx, d, spec, manifest, sh)
	m.imageManifest = image.Manifest
	m.memory = image.Memory
	if err := m.launch(ctx, func() error { return m.placeImage(image) }); err != nil {
		return nil, fmt.Errorf("prepare machine %s: %w", spec.ID, err)
	}
	return m, nil
}

func validate(spec vmm.Spec) error {
	switch {
	case spec.ID == "" || spec.Dir == "":
		return errors.New("machine needs an ID and a directory")
	case spec.VCPUs < 1 || spec.VCPUs > 32 || spec.MemoryMiB < 16:
		return fmt.Errorf(
			"machine %s: %d vCPUs and %d MiB of memory are out of range",
			spec.ID,
			spec.VCPUs,
			spec.MemoryMiB,
		)
	case len(spec.ID) > 60:
		return fmt.Errorf("machine ID %q is too long", spec.ID)
	}
	for _, r := range spec.ID {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-') {
			return fmt.Errorf("machine ID %q: only letters, digits and hyphens are allowed", spec.ID)
		}
	}
	return nil
}

// Adopt implements vmm.Driver.
func (d *Driver) Adopt(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	var r record
	p, err := d.monitors.Adopt(spec.Dir, &r)
	if err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, err)
	}
	m := newMachine(ctx, d, spec, d.manifest(spec), r.Shape)
	m.record = r
	if err := m.adopt(ctx, p); err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, err)
	}
	return m, nil
}

// Kill implements vmm.Driver.
func (d *Driver) Kill(ctx context.Context, spec vmm.Spec) error { return d.monitors.Kill(ctx, spec) }

// Close releases all machines and leaves them running, to be adopted later.
func (d *Driver) Close() error { return d.monitors.Close() }
