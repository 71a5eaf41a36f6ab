package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
)

// Drivers that Config.Driver and DriverChoice name.
const (
	Auto              = "auto"
	FirecrackerDriver = "firecracker"
	QEMUDriver        = "qemu"
)

// DriverChoice is the monitor that machines run in on this host, and the reason.
type DriverChoice struct {
	Driver      string          `json:"driver"`
	Accelerator vmm.Accelerator `json:"accelerator"`
	// Why explains why it is not Firecracker, or why guests do not run with KVM. Empty if both hold.
	Why string `json:"why,omitempty"`
}

// cachedDriver is the content of the file that records whether Firecracker runs a guest.
type cachedDriver struct {
	Key string `json:"key"`
	Why string `json:"why"` // empty: it does
}

// ChooseDriver selects Firecracker if it boots a guest, and QEMU otherwise.
//
// The accelerator of QEMU is that of ChooseAccelerator. If the configuration names a driver, only that one is
// considered; if it names Firecracker, which boots no guest, ChooseDriver returns an error with the reason. The
// result for Firecracker is kept like that of the accelerator.
func ChooseDriver(ctx context.Context, c Config) (DriverChoice, error) {
	why := ""
	if c.Driver != QEMUDriver {
		if why = c.firecrackerBoots(ctx); why == "" {
			return DriverChoice{Driver: FirecrackerDriver, Accelerator: vmm.KVM}, nil
		}
		if c.Driver == FirecrackerDriver {
			return DriverChoice{}, fmt.Errorf("choose driver: vmm.driver is firecracker, which cannot be used: %s", why)
		}
	}
	a, err := ChooseAccelerator(ctx, c)
	if err != nil {
		return DriverChoice{}, err
	}
	if a.Why != "" && why != "" {
		why += "; "
	}
	return DriverChoice{Driver: QEMUDriver, Accelerator: a.Accelerator, Why: why + a.Why}, nil
}

// firecrackerBoots returns why Firecracker cannot be used; "" if a guest's kernel started in it.
func (c Config) firecrackerBoots(ctx context.Context) string {
	binary, version, err := firecracker.Find(ctx, c.Firecracker)
	if err == nil {
		err = firecracker.CheckRelease(version)
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "Firecracker is not installed"
	}
	if err != nil {
		return err.Error()
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return "/dev/kvm does not exist"
	}
	path, err := findKernel(c.DataDir)
	if err != nil {
		return err.Error()
	}
	key, err := cacheKey(path, binary)
	if err != nil {
		return err.Error()
	}
	file := filepath.Join(c.DataDir, "run", "firecracker.json")
	var kept cachedDriver
	if err := durable.ReadJSON(file, &kept); err == nil && kept.Key == key {
		return kept.Why
	}
	why := ""
	if err := bootFirecracker(ctx, binary, path); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx).Error()
		}
		why = "a guest does not run in Firecracker: " + err.Error()
	}
	// If the result cannot be kept, the next start takes a second longer; no more is lost.
	if os.MkdirAll(filepath.Dir(file), 0o755) == nil {
		_ = durable.WriteJSON(file, cachedDriver{Key: key, Why: why})
	}
	return why
}

// bootFirecracker starts a guest and waits for the first line of its kernel, as bootQEMU does.
func bootFirecracker(ctx context.Context, binary, kernel string) error {
	config, err := json.Marshal(map[string]any{
		"boot-source": map[string]any{
			"kernel_image_path": kernel,
			"boot_args":         "console=ttyS0 reboot=k panic=1 pci=off",
		},
		"machine-config": map[string]any{"vcpu_count": 1, "mem_size_mib": 128},
		"drives":         []any{},
	})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pandastack-probe-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // in the directory for temporary files
	path := filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return err
	}
	return waitForKernelOutput(ctx, "Firecracker", kvmLimit, binary, "--no-api", "--config-file", path)
}

func (c Config) firecracker(ctx context.Context) Finding {
	const install = "install Firecracker 1.15.1 or a later 1.15, or 1.17 or newer, in PATH or set vmm.firecracker"
	path, version, err := firecracker.Find(ctx, c.Firecracker)
	wanted := c.Driver == FirecrackerDriver
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		switch _, kvm := os.Stat("/dev/kvm"); {
		case wanted:
			return fail(install, "not installed, but vmm.driver is firecracker")
		case kvm == nil:
			return warn(install, "not installed; machines run in QEMU")
		}
		return ok("not installed, and not usable without /dev/kvm; machines run in QEMU")
	}
	if err == nil {
		err = firecracker.CheckRelease(version)
	}
	if err == nil && c.Jailer != "" {
		if err := firecracker.CheckJailer(ctx, c.Jailer, path, version); err != nil {
			return fail(
				"set vmm.jailer to the jailer of this release and vmm.firecracker to its static program, or leave "+
					"vmm.jailer empty: the node has a jail of its own",
				"%v",
				err,
			)
		}
	}
	if err != nil && wanted {
		return fail(install, "%v", err)
	}
	if err != nil {
		return warn(install, "%v; machines run in QEMU", err)
	}
	var notes []string
	for _, f := range firecracker.Advisories(version) {
		notes = append(notes, fmt.Sprintf("%s: %s", f.Severity, f.Text))
	}
	text := "Firecracker " + version.String()
	if len(notes) > 0 {
		return warn("1.17 or newer has none of this", "%s; %s", text, strings.Join(notes, "; "))
	}
	return ok("%s", text)
}

func (c Config) driver(ctx context.Context) Finding {
	choice, err := ChooseDriver(ctx, c)
	switch {
	case err != nil:
		return fail("see the rows firecracker, qemu, kernel and accelerator", "%v", err)
	case choice.Driver == FirecrackerDriver:
		return ok("Firecracker: a guest booted in it")
	case choice.Accelerator == vmm.KVM && c.Driver != QEMUDriver:
		return warn("see the row firecracker", "QEMU with KVM: %s", choice.Why)
	}
	return ok("QEMU with %s", choice.Accelerator)
}

// guestMemory checks host settings that affect the memory of guests.
func (c Config) guestMemory(context.Context) Finding {
	var wrong, fix []string
	if c.HugePages {
		if ready, err := vmm.ReadHugePages(); err != nil || ready == 0 {
			wrong, fix = append(
				wrong,
				"no pages of 2 MiB are reserved, but vmm.huge_pages needs them",
			), append(
				fix,
				"sysctl vm.nr_hugepages=N, half as many as the MiB of such sandboxes",
			)
		}
	}
	if text, err := os.ReadFile("/sys/kernel/mm/ksm/run"); err == nil && strings.TrimSpace(string(text)) == "1" {
		wrong, fix = append(
			wrong,
			"equal pages of different guests are merged (KSM), which leaks information between them",
		), append(
			fix,
			"echo 0 > /sys/kernel/mm/ksm/run",
		)
	}
	if text, err := os.ReadFile("/proc/swaps"); err == nil && strings.Count(strings.TrimSpace(string(text)), "\n") > 0 {
		wrong, fix = append(wrong, "memory of guests may be written to swap and stay there"), append(fix, "swapoff -a")
	}
	const leastMaps = 65530
	if text, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n < leastMaps {
			wrong, fix = append(
				wrong,
				fmt.Sprintf("a process has %d mappings at most; memory that guests give back takes one each", n),
			), append(
				fix,
				"sysctl vm.max_map_count=262144",
			)
		}
	}
	if len(wrong) > 0 {
		return warn(strings.Join(fix, "; "), "%s", strings.Join(wrong, "; "))
	}
	return ok("not merged, not swapped")
}
