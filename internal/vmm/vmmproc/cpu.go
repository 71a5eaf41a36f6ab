package vmmproc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
)

// HostCPU names the host's processor as a guest of KVM sees it: a guest that was captured on one host can go
// on where the name is the same.
func HostCPU() (string, error) {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	return "host-" + hashCPU(string(data)), nil
}

// cpuLines tell one model and feature set from another, on amd64 and on arm64.
var cpuLines = []string{
	"vendor_id", "cpu family", "model", "model name", "stepping", "flags",
	"CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features",
}

// hashCPU digests the lines of the first processor.
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
