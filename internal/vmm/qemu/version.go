package qemu

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmproc"
)

// version is a version of QEMU.
type version struct {
	major, minor int
	text         string // "10.0.2"
}

func (v version) atLeast(major, minor int) bool {
	return v.major > major || v.major == major && v.minor >= minor
}

var versionLine = regexp.MustCompile(`version (([0-9]+)\.([0-9]+)(?:\.[0-9]+)*)`)

func parseVersion(out string) (version, error) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return version{}, fmt.Errorf("no version in %q", strings.TrimSpace(out))
	}
	major, err := strconv.Atoi(m[2])
	if err != nil {
		return version{}, err
	}
	minor, err := strconv.Atoi(m[3])
	return version{major, minor, m[1]}, err
}

// versionLimit bounds the run of a program that prints its version.
const versionLimit = 20 * time.Second

func probeVersion(ctx context.Context, binary string) (version, error) {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return version{}, fmt.Errorf(
			"run %s --version: %w; install qemu-system-x86 (pandastack setup does)",
			binary,
			err,
		)
	}
	v, err := parseVersion(string(out))
	if err != nil {
		return version{}, fmt.Errorf("run %s --version: %w", binary, err)
	}
	if !v.atLeast(7, 2) {
		return version{}, fmt.Errorf("QEMU %s is too old: 7.2 or newer is needed; run pandastack setup", v.text)
	}
	return v, nil
}

// fingerprint identifies the processor that a guest sees. Under TCG this is QEMU's own model, which
// depends only on its version. Under KVM it is the host's processor.
func fingerprint(accel vmm.Accelerator) (string, error) {
	if accel == vmm.TCG {
		return "tcg-max", nil
	}
	return vmmproc.HostCPU()
}
