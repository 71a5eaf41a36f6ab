package probe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/durable"
	"github.com/pandastack/pandastack/internal/vmm"
)

// How long a guest may take until its kernel prints its first line. A machine with working virtualization needs well
// under a second; translated code on a busy machine a few.
const (
	kvmLimit = 5 * time.Second
	tcgLimit = 100 * time.Second
)

// marker begins the first line of every Linux kernel.
const marker = "Linux version"

// Choice is the accelerator that guests run with on this machine, and the reason.
type Choice struct {
	Accelerator vmm.Accelerator `json:"accelerator"`
	// Why explains why it is not a better one: how a guest failed under KVM. Empty for KVM.
	Why string `json:"why,omitempty"`
}

// cached is the content of the file that keeps a choice until the machine restarts, or the monitor or the kernel
// changes.
type cached struct {
	Key    string `json:"key"`
	Choice Choice `json:"choice"`
}

// ChooseAccelerator boots a guest for a moment to find the accelerator that works: KVM or TCG.
//
// It tries KVM if the device exists, and TCG if there is none or the guest does not print its first line within five
// seconds. It keeps the result in the data directory, if that exists, until the machine restarts, or the monitor or
// the kernel changes. It returns an error if no guest boots, for example without a monitor or a kernel.
func ChooseAccelerator(ctx context.Context, c Config) (Choice, error) {
	path, err := findKernel(c.DataDir)
	if err != nil {
		return Choice{}, err
	}
	binary, err := exec.LookPath(c.binary())
	if err != nil {
		return Choice{}, fmt.Errorf("choose accelerator: QEMU is not installed: %w; %s", err, fixSetup)
	}
	key, err := cacheKey(path, binary)
	if err != nil {
		return Choice{}, fmt.Errorf("choose accelerator: %w", err)
	}
	file := filepath.Join(c.DataDir, "run", "accelerator.json")
	var kept cached
	if err := durable.ReadJSON(file, &kept); err == nil && kept.Key == key {
		return kept.Choice, nil
	}
	choice, err := tryAccelerators(ctx, binary, path)
	if err != nil {
		return Choice{}, err
	}
	// If the result cannot be kept, the next start takes a second longer; no more is lost.
	if os.MkdirAll(filepath.Dir(file), 0o755) == nil {
		_ = durable.WriteJSON(file, cached{Key: key, Choice: choice})
	}
	return choice, nil
}

func tryAccelerators(ctx context.Context, binary, path string) (Choice, error) {
	why := ""
	if _, err := os.Stat("/dev/kvm"); err != nil {
		why = "there is no /dev/kvm"
	} else if err := bootQEMU(ctx, binary, path, vmm.KVM, kvmLimit); err == nil {
		return Choice{Accelerator: vmm.KVM}, nil
	} else {
		why = "/dev/kvm exists, but a guest does not run with it: " + err.Error()
	}
	if err := bootQEMU(ctx, binary, path, vmm.TCG, tcgLimit); err != nil {
		return Choice{}, fmt.Errorf("choose accelerator: no guest boots: %w (%s)", err, why)
	}
	return Choice{Accelerator: vmm.TCG, Why: why}, nil
}

func (c Config) binary() string {
	if c.QEMU != "" {
		return c.QEMU
	}
	return map[string]string{"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[runtime.GOARCH]
}

// findKernel returns the path of a guest kernel, without a guest agent.
func findKernel(dataDir string) (string, error) {
	return kernel.Image(filepath.Join(dataDir, "kernel"))
}

func cacheKey(files ...string) (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "1 %s", id)
	for _, f := range append(files, "/dev/kvm") {
		info, err := os.Stat(f)
		switch {
		case err == nil && info.Mode().IsRegular():
			fmt.Fprintf(h, "%s %d %d\n", f, info.Size(), info.ModTime().UnixNano())
		case err == nil:
			fmt.Fprintf(h, "%s there\n", f)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// bootQEMU starts a guest in QEMU and waits for the first line of its kernel. The guest has no disk and no initramfs,
// so it would end soon after; bootQEMU kills it before.
func bootQEMU(ctx context.Context, binary, path string, accel vmm.Accelerator, limit time.Duration) error {
	return waitForKernelOutput(ctx, "QEMU", limit, binary, bootArguments(path, accel, kernel.IsELF(path))...)
}

// waitForKernelOutput runs a monitor until the guest's kernel prints its first line on standard output. name names
// the monitor in errors.
func waitForKernelOutput(ctx context.Context, name string, limit time.Duration, binary string, args ...string) error {
	silent := fmt.Errorf("its kernel printed nothing within %v", limit)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, silent)
	defer cancel()
	console, err := os.CreateTemp("", "pandastack-probe-*")
	if err != nil {
		return err
	}
	defer console.Close()
	if err := os.Remove(console.Name()); err != nil {
		return err
	}
	var complaint tail
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = console, &complaint
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	err = waitForMarker(console, ended)
	cancel()
	if err == nil {
		<-ended // killed by the cancellation
		return nil
	}
	if cause := context.Cause(ctx); errors.Is(cause, silent) {
		if said := words(append(complaint.data, lastWords(console)...)); said != "" {
			return fmt.Errorf("%w; %s printed: %s", cause, name, said)
		}
		return cause
	}
	said := words(append(complaint.data, lastWords(console)...))
	return fmt.Errorf("%s %w: %s", name, err, cmp.Or(said, "no message"))
}

// lastWords returns the end of what a monitor and its guest printed. Firecracker prints its errors there.
func lastWords(console *os.File) []byte {
	const most = 1024
	size, err := console.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	text := make([]byte, min(size, most))
	n, _ := console.ReadAt(text, size-int64(len(text))) // what can be read of it
	return append([]byte(" "), text[:n]...)
}

// words returns text as words on one line, without control characters.
func words(text []byte) string {
	return strings.Join(strings.FieldsFunc(string(text), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

// waitForMarker waits for the marker in the console, and returns nil, or for the end of the monitor.
func waitForMarker(console io.ReaderAt, ended <-chan error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 16<<10)
	spoke := func() bool {
		n, err := console.ReadAt(buf, 0)
		return (err == nil || errors.Is(err, io.EOF)) && strings.Contains(string(buf[:n]), marker)
	}
	for {
		select {
		case err := <-ended:
			if spoke() {
				return nil
			}
			if err == nil {
				err = errSilent
			}
			return fmt.Errorf("ended before the guest's kernel printed anything (%w)", err)
		case <-tick.C:
			if spoke() {
				return nil
			}
		}
	}
}

var errSilent = errors.New("no error code")

func bootArguments(path string, accel vmm.Accelerator, isELF bool) []string {
	machine, cpu := "microvm,acpi=on,rtc=on,pit=on,pic=on", "max"
	if isELF {
		machine = "microvm,acpi=off,rtc=on,pit=on,pic=on"
	}
	if runtime.GOARCH == "arm64" {
		machine = "virt"
	}
	if accel == vmm.KVM {
		cpu = "host"
	}
	return []string{
		"-M", machine, "-accel", string(accel), "-cpu", cpu, "-m", "128M", "-smp", "1",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-serial", "stdio", "-kernel", path,
		"-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1 reboot=t",
	}
}

// tail keeps the first kilobyte of a program's error output.
type tail struct{ data []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p[:min(len(p), 1024-len(t.data))]...)
	return len(p), nil
}

func (c Config) accelerator(ctx context.Context) Finding {
	choice, err := ChooseAccelerator(ctx, c)
	switch {
	case err != nil:
		return fail(fixSetup, "%v", err)
	case choice.Accelerator == vmm.KVM:
		return ok("KVM: a guest booted with it")
	}
	return warn("use a machine with hardware virtualization for full speed",
		"TCG: a guest booted by translation, 4 to 16 times slower than KVM; %s", choice.Why)
}
