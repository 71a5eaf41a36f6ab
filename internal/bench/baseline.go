package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/api"
)

// coldBoot measures how long a create would take without a snapshot. It kills the monitor of a persistent sandbox,
// which must run on this host, and wakes the sandbox, which boots the same disk from scratch.
func (r *run) coldBoot(ctx context.Context) error {
	sb, err := r.make(ctx, api.CreateRequest{Persistent: true})
	if err != nil {
		return err
	}
	s := r.series("cold_boot", "cold boot of the same template to the end of the first exec", nil)
	for range r.times(5) {
		if _, err := r.sh(ctx, sb.ID, "sync"); err != nil {
			return err
		}
		u, err := r.cl.Sandboxes.Usage(ctx, sb.ID)
		if err != nil {
			return err
		}
		if err := unix.Kill(u.PID, unix.SIGKILL); err != nil {
			return fmt.Errorf("kill monitor %d: %w; the node must run on this host", u.PID, err)
		}
		if err := r.until(ctx, sb.ID, api.Failed); err != nil {
			return err
		}
		began := time.Now()
		if err = r.cl.Sandboxes.Wake(ctx, sb.ID); err == nil {
			_, err = r.sh(ctx, sb.ID, "true")
		}
		r.add(s, time.Since(began), err)
		if err != nil {
			return err
		}
	}
	return nil
}

// until waits until a sandbox has a status.
func (r *run) until(ctx context.Context, id api.SandboxID, want api.Status) error {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		30*time.Second,
		fmt.Errorf("sandbox %s is not %s after 30 s", id, want),
	)
	defer cancel()
	for {
		sb, err := r.cl.Sandboxes.Get(ctx, id)
		if err == nil && sb.Status == want {
			return nil
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// runc measures a container of the distribution's runc: create, start and first exec.
func (r *run) runc(ctx context.Context) error {
	program, err := exec.LookPath("runc")
	if err != nil {
		return errors.New("runc is not installed; run 'pandastack setup --bench'")
	}
	bundle := filepath.Join(r.Work, "runc")
	if err := makeBundle(ctx, program, bundle); err != nil {
		return err
	}
	s := r.series("runc", "reference: runc container, create to the end of the first exec", nil)
	for i := range r.times(20) {
		name := fmt.Sprintf("pandastack-bench-%d-%d", os.Getpid(), i)
		began := time.Now()
		err := command(ctx, program, "run", "--detach", "--bundle", bundle, name)
		if err == nil {
			err = command(ctx, program, "exec", name, "/bin/true")
		}
		took := time.Since(began)
		if deleteErr := command(context.WithoutCancel(ctx), program, "delete", "--force", name); err == nil {
			err = deleteErr
		}
		r.add(s, took, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// command runs a program and returns its standard error in the error if it fails.
func command(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	// A file and not a pipe: a container keeps standard error open, and Run would wait until it closes.
	errs, err := os.CreateTemp("", "pandastack-bench-")
	if err != nil {
		return err
	}
	defer os.Remove(errs.Name()) //nolint:errcheck // a file in the temporary directory
	defer errs.Close()
	c.Stderr = errs
	if err := c.Run(); err != nil {
		text, _ := os.ReadFile(errs.Name()) // only detail for the error
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, strings.TrimSpace(string(text)))
	}
	return nil
}

// makeBundle creates an OCI bundle whose root file system holds sleep, true and the libraries they need.
func makeBundle(ctx context.Context, runc, bundle string) error {
	root := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"bin", "proc", "sys", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, program := range []string{"/bin/sleep", "/bin/true"} {
		libraries, err := exec.CommandContext(ctx, "ldd", program).Output()
		if err != nil {
			return fmt.Errorf("ldd %s: %w", program, err)
		}
		for _, file := range append(regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1), program) {
			if err := copyFile(file, filepath.Join(root, file)); err != nil {
				return err
			}
		}
	}
	spec := exec.CommandContext(ctx, runc, "spec", "--bundle", bundle)
	if out, err := spec.CombinedOutput(); err != nil && !strings.Contains(string(out), "already exists") {
		return fmt.Errorf("runc spec: %w: %s", err, out)
	}
	path := filepath.Join(bundle, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(data, &config); err != nil {
		return err
	}
	process, ok := config["process"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s has no process", path)
	}
	process["terminal"], process["args"] = false, []string{"/bin/sleep", "1000000"}
	if data, err = json.Marshal(config); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// copyFile copies an executable file and creates the directories above it.
func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// thisMachine describes this host. Fields that cannot be determined stay empty.
func thisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU()}
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(data); found != nil {
			m.CPU = string(found[1])
		}
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		if found := regexp.MustCompile(`MemTotal:\s*(\d+) kB`).FindSubmatch(data); found != nil {
			if kib, err := strconv.Atoi(string(found[1])); err == nil {
				m.MemoryMiB = kib / 1024
			}
		}
	}
	if data, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(data))
	}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(data), " ")
		if load, err := strconv.ParseFloat(first, 64); err == nil {
			m.Load1 = load
		}
	}
	return m
}
