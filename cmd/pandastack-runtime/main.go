// Command pandastack-runtime builds a function inside a machine and runs its handler; see package function.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pandastack/pandastack/internal/guest/function"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	code := function.Machine.Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
