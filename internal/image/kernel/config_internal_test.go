package kernel

import (
	"slices"
	"strings"
	"testing"
)

// TestGuestsHaveTheirDevices: both kernels drive what monitors give to guests: the tuned one has the drivers in it, and
// the distribution's brings them as modules. Without the balloon's driver and its reports no memory comes back, without
// that of memory none is added, without the generation's a restored guest repeats the random numbers of others.
func TestGuestsHaveTheirDevices(t *testing.T) {
	lines := strings.Split(string(fragment), "\n")
	for _, option := range []string{
		"VIRTIO_MMIO", "VIRTIO_BLK", "VIRTIO_NET", "VIRTIO_CONSOLE", "HW_RANDOM_VIRTIO", "VIRTIO_VSOCKETS", "VMGENID",
		"VIRTIO_BALLOON", "PAGE_REPORTING", "VIRTIO_MEM", "MEMORY_HOTPLUG", "MEMORY_HOTREMOVE", "KVM_GUEST", "ACPI",
	} {
		if !slices.Contains(lines, "CONFIG_"+option+"=y") {
			t.Errorf("the tuned kernel has no %s", option)
		}
	}
	for _, module := range []string{"virtio_balloon", "virtio_mem", "virtio_rng", "vmw_vsock_virtio_transport"} {
		if !slices.Contains(wanted, module) {
			t.Errorf("the module %s of the distribution's kernel is not taken along", module)
		}
	}
}
