package probe

import (
	"context"
	"time"

	"github.com/pandastack/pandastack/internal/vmm"
)

// BootKVM tries a guest under KVM with the given monitor and any kernel.
func BootKVM(ctx context.Context, binary string, limit time.Duration) error {
	return bootQEMU(ctx, binary, "vmlinuz", vmm.KVM, limit)
}

// On returns c with /proc and /sys below root.
func (c Config) On(root string) Config {
	c.system = root
	return c
}
