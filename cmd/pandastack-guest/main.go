// Command pandastack-guest is the guest agent: the first process of a machine, started by the kernel as
// /init of the initramfs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/pandastack/pandastack/internal/guest"
)

func main() { os.Exit(run(context.Background())) }

func run(ctx context.Context) int {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "pandastack-guest is the first process of a machine, and nothing else")
		return 2
	}
	err := guest.Run(ctx)
	fmt.Fprintln(os.Stderr, "pandastack-guest:", err)
	return 1
}
