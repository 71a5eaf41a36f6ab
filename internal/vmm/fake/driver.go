package fake

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// The operations that FailNext and OnStep name.
const (
	OpBoot    = "boot"
	OpPrepare = "prepare"
	OpAdopt   = "adopt"
	OpKill    = "kill" // of the driver and of a machine
	OpDial    = "dial"
	OpLoad    = "load"
	OpPause   = "pause"
	OpResume  = "resume"
	OpCapture = "capture"
	OpSave    = "save"
	OpSwap    = "swap" // of a disk, or of its size
)

// version is in every manifest. A test of mismatches changes the manifest.
const version = "1.0"

// Driver is a host of fake machines.
type Driver struct {
	mu       sync.Mutex
	monitors map[string]*monitor // by directory
	nextPID  int
	fail     map[string][]error
	full     bool // the host has no space for what guests write
	onStep   func(op, id string) error
}

var _ vmm.Driver = (*Driver)(nil)

// New returns a host without machines.
func New() *Driver {
	return &Driver{monitors: map[string]*monitor{}, nextPID: 1 << 30, fail: map[string][]error{}}
}

// Capabilities implements vmm.Driver.
func (d *Driver) Capabilities() vmm.Capabilities {
	return vmm.Capabilities{
		Name: "fake", Version: version, Accelerator: vmm.None, Isolation: "none", Snapshot: true, LiveFork: true,
	}
}

// FailNext makes the next call of op fail with err; a second FailNext is for the call after it.
func (d *Driver) FailNext(op string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[op] = append(d.fail[op], err)
}

// OnStep sets the function that is called before every operation with its name and the machine's id.
// If it returns an error, the operation fails. nil removes it.
func (d *Driver) OnStep(f func(op, id string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onStep = f
}

func (d *Driver) step(ctx context.Context, op, id string) error {
	d.mu.Lock()
	hook := d.onStep
	var err error
	if q := d.fail[op]; len(q) > 0 {
		err, d.fail[op] = q[0], q[1:]
	}
	d.mu.Unlock()
	if hook != nil {
		err = errors.Join(hook(op, id), err)
	}
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s machine %s: %w", op, id, err)
	}
	return nil
}

// Monitors returns the ids of the machines that run, sorted.
func (d *Driver) Monitors() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for _, m := range d.monitors {
		ids = append(ids, m.spec.ID)
	}
	slices.Sort(ids)
	return ids
}

// Crash ends the monitor of machine id with the error why, and reports whether there was one.
func (d *Driver) Crash(id string, why error) bool {
	d.mu.Lock()
	var found *monitor
	for _, m := range d.monitors {
		if m.spec.ID == id {
			found = m
		}
	}
	d.mu.Unlock()
	if found == nil {
		return false
	}
	found.end(why)
	return true
}

// SetFull sets whether the host has space for what guests write. It changes nothing by itself: see Write.
func (d *Driver) SetFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

// Write has the guest of machine id write to its disk. If the host has no space, the guest is stopped until it is
// resumed with space. Write reports whether there is such a machine and it runs.
func (d *Driver) Write(id string) bool {
	d.mu.Lock()
	full := d.full
	var found *monitor
	for _, m := range d.monitors {
		if m.spec.ID == id {
			found = m
		}
	}
	d.mu.Unlock()
	if found == nil {
		return false
	}
	w := found.runningGuest()
	found.mu.Lock()
	runs := w != nil && !found.paused && !found.waits
	found.waits = found.waits || runs && full
	found.mu.Unlock()
	if runs && full {
		w.setPaused(true)
		found.repeatWrite()
	}
	return runs
}

func (d *Driver) find(dir string) *monitor {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.monitors[filepath.Clean(dir)]
}

// launch makes a monitor in spec.Dir, which must not have one.
func (d *Driver) launch(ctx context.Context, spec vmm.Spec, m vmm.Manifest, base string) (*monitor, error) {
	if spec.ID == "" || spec.VCPUs < 1 || spec.MemoryMiB < 1 {
		return nil, errors.New("machine needs an id, processors and memory")
	}
	if st, err := os.Stat(spec.Dir); err != nil || !st.IsDir() {
		return nil, fmt.Errorf("directory of machine %s: %w", spec.ID, errors.Join(err, os.ErrNotExist))
	}
	for _, disk := range spec.Disks {
		st, err := os.Stat(disk.Path)
		if err != nil {
			return nil, err
		}
		m.DiskBytes = append(m.DiskBytes, st.Size())
	}
	m.Disks, m.NIC, m.VCPUs, m.MemoryMiB = len(spec.Disks), spec.NIC != nil, spec.VCPUs, spec.MemoryMiB
	d.mu.Lock()
	defer d.mu.Unlock()
	key := filepath.Clean(spec.Dir)
	if d.monitors[key] != nil {
		return nil, fmt.Errorf("directory %s has a monitor already", spec.Dir)
	}
	d.nextPID++
	mon := &monitor{
		driver:   d,
		spec:     spec,
		manifest: m,
		base:     base,
		pid:      d.nextPID,
		started:  time.Now(),
		done:     make(chan struct{}),
	}
	d.monitors[key] = mon
	mon.serve(context.WithoutCancel(ctx))
	if spec.Confine.Enter != nil {
		if err := spec.Confine.Enter(os.Getpid()); err != nil {
			delete(d.monitors, key)
			return nil, err
		}
	}
	return mon, nil
}

func hostManifest() vmm.Manifest {
	return vmm.Manifest{
		Version:     vmm.ManifestVersion,
		Driver:      "fake",
		VMM:         version,
		Accelerator: vmm.None,
		CPU:         "none",
		Machine:     "fake-1",
	}
}

// Boot implements vmm.Driver. It ignores kernel and initramfs.
func (d *Driver) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := d.step(ctx, OpBoot, spec.ID); err != nil {
		return nil, err
	}
	mon, err := d.launch(ctx, spec, hostManifest(), "")
	if err != nil {
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	mon.start(newGuestState())
	return &machine{mon}, nil
}

// Prepare implements vmm.Driver.
func (d *Driver) Prepare(ctx context.Context, spec vmm.Spec, image vmm.Image) (vmm.Machine, error) {
	if err := d.step(ctx, OpPrepare, spec.ID); err != nil {
		return nil, err
	}
	if err := check(spec, image.Manifest); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(image.Dir, memoryName))
	if err != nil {
		return nil, fmt.Errorf("prepare machine %s: %w", spec.ID, err)
	}
	if sum := digest(data); len(image.Manifest.Files) == 0 || sum != image.Manifest.Files[0].SHA256 {
		return nil, fmt.Errorf("prepare machine %s: %s is damaged", spec.ID, filepath.Join(image.Dir, memoryName))
	}
	mon, err := d.launch(ctx, spec, hostManifest(), digest(data))
	if err != nil {
		return nil, fmt.Errorf("prepare machine %s: %w", spec.ID, err)
	}
	mon.image = data
	return &machine{mon}, nil
}

func check(spec vmm.Spec, m vmm.Manifest) error {
	want := hostManifest()
	for _, f := range []struct{ field, image, host string }{
		{"version", fmt.Sprint(m.Version), fmt.Sprint(want.Version)},
		{"driver", m.Driver, want.Driver},
		{"fake version", m.VMM, want.VMM},
		{"accelerator", string(m.Accelerator), string(want.Accelerator)},
		{"processor", m.CPU, want.CPU},
		{"machine", m.Machine, want.Machine},
		{"vcpus", fmt.Sprint(m.VCPUs), fmt.Sprint(spec.VCPUs)},
		{"memory_mib", fmt.Sprint(m.MemoryMiB), fmt.Sprint(spec.MemoryMiB)},
		{"disks", fmt.Sprint(m.Disks), fmt.Sprint(len(spec.Disks))},
		{"nic", fmt.Sprint(m.NIC), fmt.Sprint(spec.NIC != nil)},
	} {
		if f.image != f.host {
			return &vmm.MismatchError{Field: f.field, Image: f.image, Host: f.host}
		}
	}
	return nil
}

// Adopt implements vmm.Driver. A machine that was never loaded ends with the process that prepared it.
func (d *Driver) Adopt(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := d.step(ctx, OpAdopt, spec.ID); err != nil {
		return nil, err
	}
	mon := d.find(spec.Dir)
	if mon == nil {
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, vmm.ErrGone)
	}
	if mon.runningGuest() == nil {
		mon.end(errors.New("machine was never loaded"))
		return nil, fmt.Errorf("adopt machine %s: %w", spec.ID, vmm.ErrGone)
	}
	mon.closeChannel()
	return &machine{mon}, nil
}

// Kill implements vmm.Driver.
func (d *Driver) Kill(ctx context.Context, spec vmm.Spec) error {
	if err := d.step(ctx, OpKill, spec.ID); err != nil {
		return err
	}
	if mon := d.find(spec.Dir); mon != nil {
		mon.end(nil)
	}
	return nil
}

// Names of the files of an image.
const (
	memoryName   = "memory"
	manifestName = "manifest.json"
)

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func save(dir string, m vmm.Manifest, data []byte) (vmm.Image, error) {
	m.Created = time.Now().UTC()
	m.Files = []vmm.File{{Name: memoryName, Bytes: int64(len(data)), SHA256: digest(data)}}
	if err := durable.WriteFile(filepath.Join(dir, memoryName), data, 0o444); err != nil {
		return vmm.Image{}, err
	}
	if err := durable.WriteJSON(filepath.Join(dir, manifestName), m); err != nil {
		return vmm.Image{}, err
	}
	return vmm.Image{Dir: dir, Manifest: m}, nil
}
