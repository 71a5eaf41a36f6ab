package qemu

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/monitor"
)

// version is QEMU's.
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

// versionLimit bounds the run of a program that only prints its version.
const versionLimit = 20 * time.Second

func probeVersion(ctx context.Context, binary string) (version, error) {
	ctx, cancel := context.WithTimeout(ctx, versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--version").Output()
	if err != nil {
		return version{}, fmt.Errorf("run %s --version: %w; install qemu-system-x86 (pandastack setup does)", binary, err)
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

// fingerprint names what a guest sees of the processor. Under TCG that is QEMU's own model and depends on
// its version alone; under KVM it is the host's processor.
func fingerprint(accel vmm.Accelerator) (string, error) {
	if accel == vmm.TCG {
		return "tcg-max", nil
	}
	return monitor.HostCPU()
}

// clockSample is one reading of both clocks.
type clockSample struct {
	tsc uint64
	ns  int64
}

// sampleClocks reads both clocks as close together as a few tries can.
func sampleClocks() clockSample {
	var best clockSample
	least := ^uint64(0)
	for range 8 {
		var ts unix.Timespec
		before := readTSC()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
			continue
		}
		after := readTSC()
		if after-before < least {
			least = after - before
			best = clockSample{before + (after-before)/2, ts.Nano()}
		}
	}
	return best
}

// tscWindow is how far two samples must lie apart: reading them is good to about 100 ns, so the rate to
// one part in a million.
const tscWindow = 100 * time.Millisecond

// tscMeter measures the rate of the time stamp counter once.
type tscMeter struct {
	start clockSample

	mu  sync.Mutex
	khz int64
}

// kHz answers the rate in kHz, 0 on a processor without one. The first call waits until tscWindow has
// passed since the meter was made.
func (t *tscMeter) kHz(ctx context.Context) (int64, error) {
	if !hasTSC {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.khz != 0 {
		return t.khz, nil
	}
	now := sampleClocks()
	if rest := tscWindow - time.Duration(now.ns-t.start.ns); rest > 0 {
		timer := time.NewTimer(rest)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		now = sampleClocks()
	}
	t.khz = rate(t.start, now)
	return t.khz, nil
}

func rate(a, b clockSample) int64 {
	return int64(float64(b.tsc-a.tsc)*1e6/float64(b.ns-a.ns) + 0.5)
}
