package values

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pandastack/pandastack/api"
)

// LimitFlags are the limits of sandboxes as flags.
type LimitFlags struct{ api.Limits }

// Register adds the flags.
func (l *LimitFlags) Register(f *pflag.FlagSet) {
	f.IntVar(
		&l.DiskMiB,
		"disk-limit-mib",
		0,
		"MiB per second read from and written to each disk (default: the server's limit)",
	)
	f.IntVar(&l.DiskOps, "disk-limit-ops", 0, "reads and writes per second of each disk (default: the server's limit)")
	f.IntVar(&l.NetworkInMbit, "network-limit-in", 0, "Mbit per second to the sandbox (default: the server's limit)")
	f.IntVar(&l.NetworkOutMbit, "network-limit-out", 0, "Mbit per second from the sandbox (default: the server's "+
		"limit)")
	f.IntVar(&l.Connections, "connection-limit", 0, "connections that the sandbox opened, at once (default: the "+
		"server's limit)")
	f.IntVar(&l.NewConnections, "new-connection-limit", 0, "connections that the sandbox opens per second (default: "+
		"the server's limit)")
}

// Given returns the limits that were given, or nil if there are none.
func (l *LimitFlags) Given() *api.Limits {
	if l.IsZero() {
		return nil
	}
	return &l.Limits
}

// Bounds returns limits as text.
func Bounds(l *api.Limits) string {
	if l == nil {
		return ""
	}
	var all []string
	for _, f := range []struct {
		n    int
		text string
	}{
		{l.DiskMiB, "disk %d MiB/s"}, {l.DiskOps, "disk %d/s"},
		{l.NetworkInMbit, "network in %d Mbit/s"}, {l.NetworkOutMbit, "network out %d Mbit/s"},
		{l.Connections, "%d connections"}, {l.NewConnections, "%d new connections/s"},
	} {
		if f.n != 0 {
			all = append(all, fmt.Sprintf(f.text, f.n))
		}
	}
	return strings.Join(all, ", ")
}
