package kernel

import (
	"slices"
	"strings"
	"testing"
)

// TestGuestsHaveTheirDevices checks that both kernels have the drivers of the monitors' devices: built into the tuned
// kernel, and as modules of the distribution's. Without the balloon's driver and its reports no memory is returned,
// without that of virtio-mem none is added, and without that of the generation ID a restored guest repeats the random
// numbers of others.
func TestGuestsHaveTheirDevices(t *testing.T) {
	lines := strings.Split(string(fragment), "\n")
	for _, option := range []string{
		"VIRTIO_MMIO", "VIRTIO_BLK", "VIRTIO_NET", "VIRTIO_CONSOLE", "HW_RANDOM_VIRTIO", "VIRTIO_VSOCKETS", "VMGENID",
		"VIRTIO_BALLOON", "PAGE_REPORTING", "VIRTIO_MEM", "MEMORY_HOTPLUG", "MEMORY_HOTREMOVE", "KVM_GUEST", "ACPI",
	} {
		if !slices.Contains(lines, "CONFIG_"+option+"=y") {
			t.Errorf("the tuned kernel does not have %s", option)
		}
	}
	for _, module := range []string{"virtio_balloon", "virtio_mem", "virtio_rng", "vmw_vsock_virtio_transport"} {
		if !slices.Contains(wantedModules, module) {
			t.Errorf("the module %s of the distribution's kernel is not copied", module)
		}
	}
}
