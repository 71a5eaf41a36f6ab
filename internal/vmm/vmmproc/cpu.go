package vmmproc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
)

// HostCPU identifies the host's processor as KVM shows it to a guest. A guest that was captured on
// one host can be restored on a host with the same result.
func HostCPU() (string, error) {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	return "host-" + hashCPU(string(data)), nil
}

// cpuLines are the lines of /proc/cpuinfo that distinguish models and feature sets, on amd64 and
// arm64.
var cpuLines = []string{
	"vendor_id", "cpu family", "model", "model name", "stepping", "flags",
	"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
}

// hashCPU hashes these lines of the first processor.
func hashCPU(cpuinfo string) string {
	first, _, _ := strings.Cut(cpuinfo, "\n\n")
	sum := sha256.New()
	for line := range strings.Lines(first) {
		key, value, _ := strings.Cut(line, ":")
		if slices.Contains(cpuLines, strings.TrimSpace(key)) {
			fmt.Fprintln(sum, strings.TrimSpace(value))
		}
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}
