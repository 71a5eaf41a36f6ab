package probe_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/host/probe"
)

// TestAllFindingsAreComplete checks that every probe returns a level and a text, and a fix if there is a problem.
func TestAllFindingsAreComplete(t *testing.T) {
	c := probe.Config{DataDir: filepath.Join(t.TempDir(), "none"), QEMU: "no-such-qemu"}
	seen := map[string]bool{}
	results := probe.Run(t.Context(), probe.All(c), func(r probe.Result) { seen[r.Name] = true })
	for _, r := range results {
		t.Logf("%-12s %-5s %s [%s] %v", r.Name, r.Level, r.Text, r.Fix, r.Took)
		if r.Text == "" || r.Level != probe.OK && r.Level != probe.Warn && r.Level != probe.Fail {
			t.Errorf("probe %s: got %+v", r.Name, r.Finding)
		}
		if (r.Level == probe.OK) != (r.Fix == "") {
			t.Errorf("probe %s: got level %s with fix %q", r.Name, r.Level, r.Fix)
		}
		if !seen[r.Name] {
			t.Errorf("probe %s was not reported as it ended", r.Name)
		}
	}
	for _, name := range []string{probe.QEMU, probe.Kernel, probe.GuestAgent, probe.Accelerator, probe.Reflink} {
		list, err := probe.Find(probe.All(c), name)
		if err != nil {
			t.Fatal(err)
		}
		if f := list[0].Run(t.Context()); f.Level != probe.Fail {
			t.Errorf("probe %s: got level %s on an empty machine: %s", name, f.Level, f.Text)
		}
	}
}

func TestFindUnknown(t *testing.T) {
	if _, err := probe.Find(nil, "no-such"); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("Find: got error %v", err)
	}
}

// A stand-in for QEMU plays a machine whose /dev/kvm exists but runs no guest.
const fakeQEMU = `#!/bin/sh
case "$*" in
*"-accel kvm"*) %s ;;
*) echo "[ 0.0] Linux version 6.0" ; exec sleep 600 ;;
esac
`

func fake(t *testing.T, kvm string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(path, []byte(strings.Replace(fakeQEMU, "%s", kvm, 1)), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBootReportsFailures(t *testing.T) {
	rows := map[string]struct {
		kvm, want string
		limit     time.Duration
	}{
		"broken": {"echo 'ioctl(KVM_CREATE_VM) failed' >&2; exit 1", "KVM_CREATE_VM", time.Minute},
		"dies":   {"exit 0", "no message", time.Minute},
		"silent": {"exec sleep 600", "printed nothing", 300 * time.Millisecond},
		"other":  {"echo BIOS; exec sleep 600", "printed nothing", 300 * time.Millisecond},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			err := probe.BootKVM(t.Context(), fake(t, r.kvm), r.limit)
			if err == nil || !strings.Contains(err.Error(), r.want) {
				t.Errorf("boot: got error %v, want one that contains %q", err, r.want)
			}
		})
	}
	t.Run("works", func(t *testing.T) {
		if err := probe.BootKVM(t.Context(), fake(t, "echo Linux version 6; exec sleep 600"), time.Minute); err != nil {
			t.Error(err)
		}
	})
}

func TestBootCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if err := probe.BootKVM(ctx, fake(t, "exec sleep 600"), time.Minute); err == nil {
		t.Error("boot of a cancelled context: got no error")
	}
}
