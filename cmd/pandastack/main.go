// Command pandastack is the whole of PandaStack on one machine: the node, and the command line that
// speaks to one. It only hands over to internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pandastack/pandastack/internal/cli"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

// version is set by the linker.
var version = "unknown"

func main() {
	uffdtest.Main() // nothing, but in a process of the bench whose memory is served
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as it is by nohup(1)
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	p := cli.Process{Version: version, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	code := cli.Run(ctx, p, os.Args[1:])
	stop()
	os.Exit(code)
}
