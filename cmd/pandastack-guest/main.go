//go:debug updatemaxprocs=0
//go:debug containermaxprocs=0

// Command pandastack-guest is the guest agent: the first process of a machine, started by the kernel as /init of the
// initramfs. Inside a machine it can also be run through /proc/1/exe to pack and unpack files.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/archive"
)

// The go:debug settings above switch off updates of GOMAXPROCS: the number of processors does not change, and
// checking for a change costs time in a machine that was just restored.
func main() { os.Exit(run(context.Background())) }

func run(ctx context.Context) int {
	if os.Getpid() != 1 && len(os.Args) > 1 && archive.IsVerb(os.Args[1]) {
		return archive.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	if os.Getpid() != 1 {
		fmt.Fprintln(
			os.Stderr,
			"pandastack-guest is the first process of a machine; in one it also packs and unpacks files",
		)
		return 2
	}
	err := agent.Run(ctx)
	fmt.Fprintln(os.Stderr, "pandastack-guest:", err)
	return 1
}
