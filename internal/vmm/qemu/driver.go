package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/os/seccomp"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/qemu/checkpointstore"
	"github.com/pandastack/pandastack/internal/vmm/qemu/tsc"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// Config configures a Driver.
type Config struct {
	Binary      string          // path of qemu-system-x86_64; "": the path in Debian
	Accelerator vmm.Accelerator // vmm.TCG or vmm.KVM, as probed by the caller; "": TCG
	// Dir is the directory for files that belong to no machine. If it is empty, machines are always
	// restored from their device state and never from a monitor checkpoint.
	Dir string
	Log *slog.Logger // nil: no log
	// AllowSyscalls are names of system calls that monitors in a jail may make in addition to those
	// that QEMU is known to need.
	AllowSyscalls []string
	// Limit bounds each wait for a monitor: for its start, a response, or its exit. 0 means one
	// minute.
	Limit time.Duration
}

const (
	defaultBinary = "/usr/bin/qemu-system-x86_64"
	defaultLimit  = time.Minute
)

// Driver runs machines in QEMU.
type Driver struct {
	config      Config
	version     version
	cpu         string
	groups      []uint32               // supplementary groups of a monitor: the group of /dev/kvm
	checkpoints *checkpointstore.Store // nil: monitor checkpoints are not used
	tsc         *tsc.Meter
	monitors    *vmmproc.Registry
	// System calls of monitors and of restore stubs in a jail.
	syscalls, stubSyscalls *seccomp.Policy
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a driver for the installed QEMU. It fails if QEMU is missing or too old.
func New(ctx context.Context, config Config) (*Driver, error) {
	if runtime.GOARCH != "amd64" {
		return nil, &vmm.UnsupportedError{Op: "run on " + runtime.GOARCH, Driver: "qemu"}
	}
	if config.Binary == "" {
		config.Binary = defaultBinary
	}
	if config.Accelerator == "" {
		config.Accelerator = vmm.TCG
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.Limit == 0 {
		config.Limit = defaultLimit
	}
	if config.Accelerator != vmm.TCG && config.Accelerator != vmm.KVM {
		return nil, &vmm.UnsupportedError{Op: "use accelerator " + string(config.Accelerator), Driver: "qemu"}
	}
	d := &Driver{config: config, monitors: vmmproc.NewRegistry(config.Limit, removeFiles), tsc: tsc.New()}
	var err error
	if d.version, err = probeVersion(ctx, config.Binary); err != nil {
		return nil, err
	}
	if d.cpu, err = fingerprint(config.Accelerator); err != nil {
		return nil, err
	}
	if d.syscalls, d.stubSyscalls, err = syscallPolicies(config.Accelerator, config.AllowSyscalls); err != nil {
		return nil, err
	}
	if config.Dir != "" && config.Accelerator == vmm.TCG {
		if d.checkpoints, err = checkpointstore.Open(config.Dir, config.Log); err != nil {
			return nil, err
		}
	}
	if config.Accelerator == vmm.KVM {
		st, err := os.Stat("/dev/kvm")
		if err != nil {
			return nil, err
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			d.groups = []uint32{sys.Gid}
		}
	}
	return d, nil
}

// Capabilities implements vmm.Driver.
func (d *Driver) Capabilities() vmm.Capabilities {
	return vmm.Capabilities{
		Name: "qemu", Version: d.version.text, Format: machineFormat, Accelerator: d.config.Accelerator,
		Isolation: "microvm", Snapshot: true, LiveFork: true,
		Capture: vmm.CaptureFeatures{Checkpoints: d.checkpoints != nil},
		Disks:   vmm.DiskFeatures{Rates: true},
	}
}

// manifest returns the manifest of a machine with this spec on this host. The caller sets Machine
// and DiskBytes.
func (d *Driver) manifest(ctx context.Context, spec vmm.Spec) (vmm.Manifest, error) {
	khz, err := d.tsc.KHz(ctx)
	if err != nil {
		return vmm.Manifest{}, err
	}
	return vmm.Manifest{
		Version: vmm.ManifestVersion, Driver: "qemu", VMM: d.version.text, Accelerator: d.config.Accelerator,
		CPU: d.cpu, TSCkHz: khz, VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB,
		Disks: len(spec.Disks), DiskRates: diskRates(spec.Disks), NIC: spec.NIC != nil,
	}, nil
}

// Boot implements vmm.Driver.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec) (_ vmm.Machine, err error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	if spec.Kernel == "" || len(spec.Disks) == 0 && spec.Initramfs == "" {
		return nil, errors.New("boot: the machine needs a kernel, and a disk or an initramfs")
	}
	manifest, err := d.manifest(ctx, spec)
	if err != nil {
		return nil, err
	}
	m, err := d.launch(ctx, spec, manifest, nil)
	if err != nil {
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	limit, cancel := d.monitors.WithTimeout(ctx, "start of the monitor")
	defer cancel()
	if err := m.do(limit, "cont", nil, nil); err != nil {
		return nil, errors.Join(fmt.Errorf("boot machine %s: %w", spec.ID, err), m.Discard(ctx))
	}
	m.SetPhase(vmmproc.Running)
	return m, nil
}

// Prepare implements vmm.Driver. It does not wait for the monitor; Load reports errors of its
// start.
func (d *Driver) Prepare(ctx context.Context, spec vmm.Spec, image vmm.Image) (vmm.Machine, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	want, err := d.manifest(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := checkManifest(image.Manifest, want); err != nil {
		return nil, err
	}
	m, err := d.launch(ctx, spec, image.Manifest, &image)
	if err != nil {
		return nil, fmt.Errorf("prepare machine %s: %w", spec.ID, err)
	}
	return m, nil
}

// CheckCompatible implements vmm.Fitter.
func (d *Driver) CheckCompatible(ctx context.Context, m vmm.Manifest) error {
	want, err := d.manifest(
		ctx,
		vmm.Spec{VCPUs: m.VCPUs, MemoryMiB: m.MemoryMiB, Disks: make([]vmm.Disk, min(max(m.Disks, 0), 64))},
	)
	if err != nil {
		return err
	}
	want.NIC = m.NIC
	return checkManifest(m, want)
}

func validate(spec vmm.Spec) error {
	switch {
	case spec.ID == "" || spec.Dir == "":
		return errors.New("machine needs an ID and a directory")
	case spec.VCPUs < 1 || spec.MemoryMiB < 16:
		return fmt.Errorf("machine %s: %d vCPUs and %d MiB of memory are too few", spec.ID, spec.VCPUs, spec.MemoryMiB)
	}
	for _, r := range spec.ID {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
			return fmt.Errorf("machine ID %q: only letters, digits, hyphens and underscores are allowed", spec.ID)
		}
	}
	return nil
}

// Adopt implements vmm.Driver.
func (d *Driver) Adopt(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := validate(spec); err != nil {
		return nil, err
	}
	manifest, err := d.manifest(ctx, spec)
	if err != nil {
		return nil, err
	}
	var r record
	p, err := d.monitors.Adopt(spec.Dir, &r)
	if err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, err)
	}
	manifest.Machine, manifest.DiskBytes, manifest.DiskRates = machineName(r.ACPI), r.DiskBytes, r.DiskRates
	m, err := d.adopt(ctx, spec, manifest, r, p)
	if err != nil {
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, err)
	}
	return m, nil
}

// Kill implements vmm.Driver.
func (d *Driver) Kill(ctx context.Context, spec vmm.Spec) error { return d.monitors.Kill(ctx, spec) }

// Close releases all machines and leaves them running, to be adopted later.
func (d *Driver) Close() error { return d.monitors.Close() }
