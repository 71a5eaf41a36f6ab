package probe_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/firecracker"
	"github.com/pandastack/pandastack/internal/vmm/firecracker/fcapi"
)

// monitors are stand-ins for a Firecracker of a release, whose exit is given, and a QEMU that runs guests by
// translation, beside a kernel.
func monitors(t *testing.T, release, run string) probe.Config {
	t.Helper()
	dir := t.TempDir()
	kernels := filepath.Join(dir, "kernel", "tuned")
	if err := os.MkdirAll(kernels, 0o755); err != nil {
		t.Fatal(err)
	}
	c := probe.Config{DataDir: dir, QEMU: fake(t, "exit 1"), Firecracker: filepath.Join(dir, "firecracker")}
	script := fmt.Sprintf(
		"#!/bin/sh\ncase \"$*\" in --version) echo Firecracker v%s ;; --no-api*) %s ;; esac\n",
		release,
		run,
	)
	for path, text := range map[string]string{
		c.Firecracker:                         script,
		filepath.Join(kernels, "vmlinux"):     "\x7fELF",
		filepath.Join(kernels, "kernel.json"): `{"version":"6.0","image":"vmlinux","modules":null,"sha256":{}}`,
	} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

const speaks = "echo '[ 0.0] Linux version 6.0'; exec sleep 600"

func TestChooseDriver(t *testing.T) {
	_, err := os.Stat("/dev/kvm")
	kvm := err == nil
	for _, r := range []struct {
		name, release, run, driver string
		want, why                  string
	}{
		{"usable", "1.15.1", speaks, "auto", "firecracker", ""},
		{"faulty", "1.16.0", speaks, "auto", "qemu", "1.16.0 is not used"},
		{"broken", "1.17.0", "echo no KVM >&2; exit 1", "auto", "qemu", "no KVM"},
		{"broken_and_set", "1.17.0", "echo no KVM >&2; exit 1", "firecracker", "", "no KVM"},
		{"broken_says_so_on_stdout", "1.17.0", "echo no rights; exit 1", "auto", "qemu", "no rights"},
		{"not_asked", "1.15.1", speaks, "qemu", "qemu", ""},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := monitors(t, r.release, r.run)
			c.Driver = r.driver
			if !kvm { // no guest runs in Firecracker then, and the result is the same for all
				if r.want == "firecracker" {
					r.want = "qemu"
				}
				if r.run != speaks {
					r.why = "no /dev/kvm"
				}
			}
			got, err := probe.ChooseDriver(t.Context(), c)
			if r.want == "" {
				if err == nil || !strings.Contains(err.Error(), r.why) {
					t.Errorf("ChooseDriver: got %+v, %v, want no driver because of %q", got, err, r.why)
				}
				return
			}
			if err != nil || got.Driver != r.want || !strings.Contains(got.Why, r.why) {
				t.Errorf("ChooseDriver: got %+v, %v, want %s because of %q", got, err, r.want, r.why)
			}
			if r.want == "qemu" && got.Accelerator != vmm.TCG {
				t.Errorf("ChooseDriver: got %+v", got)
			}
			again, err := probe.ChooseDriver(t.Context(), c)
			if err != nil || again != got {
				t.Errorf("second ChooseDriver: got %+v, %v", again, err)
			}
		})
	}
}

// TestJailerRow checks that a jailer of another release, or a program that is none, is found before a machine starts.
func TestJailerRow(t *testing.T) {
	for name, r := range map[string]struct {
		says  string
		level probe.Level
		words string
	}{
		"fits":   {"Jailer v1.17.0", probe.OK, "1.17.0"},
		"other":  {"Jailer v1.16.0", probe.Fail, "does not match"},
		"faulty": {"Jailer v1.14.0", probe.Fail, "does not match"},
		"none":   {"hello", probe.Fail, "no version"},
	} {
		c := monitors(t, "1.17.0", speaks)
		c.Jailer = filepath.Join(t.TempDir(), "jailer")
		if err := os.WriteFile(c.Jailer, []byte("#!/bin/sh\necho "+r.says+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		list, err := probe.Find(probe.All(c), probe.Firecracker)
		if err != nil {
			t.Fatal(err)
		}
		if f := list[0].Run(t.Context()); f.Level != r.level || !strings.Contains(f.Text, r.words) ||
			(f.Level == probe.Fail) == (f.Fix == "") {
			t.Errorf("%s: got %+v", name, f)
		}
	}
}

// TestDynamicProgram checks that a program which the jailer cannot run is found.
func TestDynamicProgram(t *testing.T) {
	program, err := exec.LookPath("true")
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		t.Fatal(err)
	}
	jailer := filepath.Join(t.TempDir(), "jailer")
	if err := os.WriteFile(jailer, []byte("#!/bin/sh\necho Jailer v1.17.0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	version := fcapi.Version{Major: 1, Minor: 17}
	if err := firecracker.CheckJailer(t.Context(), jailer, program, version); err == nil ||
		!strings.Contains(err.Error(), "shared libraries") {
		t.Errorf("CheckJailer with %s = %v, want an error about shared libraries", program, err)
	}
	if err := firecracker.CheckJailer(t.Context(), jailer, jailer, version); err != nil {
		t.Errorf("CheckJailer with a script = %v, want nil", err)
	}
}

// TestHugePagesRow checks the warning for huge pages that are configured and missing.
func TestHugePagesRow(t *testing.T) {
	ready, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
	if err != nil || strings.TrimSpace(string(ready)) != "0" {
		t.Skipf("probe hugepages: this machine keeps %s: %v", ready, err)
	}
	for _, asked := range []bool{true, false} {
		list, err := probe.Find(probe.All(probe.Config{HugePages: asked}), probe.GuestMemory)
		if err != nil {
			t.Fatal(err)
		}
		if f := list[0].Run(t.Context()); strings.Contains(f.Text, "vmm.huge_pages") != asked {
			t.Errorf("with huge pages %v: got %+v", asked, f)
		}
	}
}

func TestFirecrackerRow(t *testing.T) {
	for release, want := range map[string]struct {
		level probe.Level
		words string
	}{
		"1.12.0": {probe.Warn, "it is older than 1.15.1"},
		"1.14.3": {probe.Warn, "it is older than 1.15.1"},
		"1.15.0": {probe.Warn, "CVE-2026-5747"},
		"1.15.1": {probe.Warn, "noted: IA32_XSS"},
		"1.16.0": {probe.Warn, "vsock connections to a restored guest fail"},
		"1.16.1": {probe.Warn, "vsock connections to a guest fail after pause and resume"},
		"1.16.2": {probe.Warn, "after pause and resume"},
		"1.15.2": {probe.Warn, "avoided: CPU templates"},
		"1.17.0": {probe.OK, ""},
	} {
		c := monitors(t, release, speaks)
		list, err := probe.Find(probe.All(c), probe.Firecracker)
		if err != nil {
			t.Fatal(err)
		}
		f := list[0].Run(t.Context())
		if f.Level != want.level || !strings.Contains(f.Text, release) || !strings.Contains(f.Text, want.words) {
			t.Errorf("%s: got %+v, want %q", release, f, want.words)
		}
	}
}
