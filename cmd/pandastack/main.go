// Command pandastack is PandaStack's node and its command-line client in one program. The commands are in
// internal/cli.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pandastack/pandastack/internal/cli"
	"github.com/pandastack/pandastack/internal/node"
	"github.com/pandastack/pandastack/internal/os/uffd/uffdtest"
)

// version is set by the linker.
var version = "unknown"

func main() {
	uffdtest.Main() // returns at once unless this is a child process of the page fault benchmark
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup(1) makes it ignored
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	received := make(chan os.Signal, 1)
	signal.Notify(received, signals...)
	go func() { // ends with the program
		if <-received == syscall.SIGTERM {
			cancel(node.ErrTerminated)
			return
		}
		cancel(nil)
	}()
	p := cli.Process{Version: version, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	os.Exit(cli.Run(ctx, p, os.Args[1:]))
}
