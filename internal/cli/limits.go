package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pandastack/pandastack/api"
)

// limitFlags are the limits of sandboxes as flags.
type limitFlags struct{ api.Limits }

func (l *limitFlags) register(f *pflag.FlagSet) {
	f.IntVar(
		&l.DiskMiB,
		"disk-limit-mib",
		0,
		"MiB that may be read from and written to each disk a second (default: the server's limit)",
	)
	f.IntVar(&l.DiskOps, "disk-limit-ops", 0, "reads and writes of each disk a second (default: the server's limit)")
	f.IntVar(&l.NetworkInMbit, "network-limit-in", 0, "Mbit a second to the sandbox (default: the server's limit)")
	f.IntVar(&l.NetworkOutMbit, "network-limit-out", 0, "Mbit a second from the sandbox (default: the server's limit)")
}

// limits are those that were given, nil for none.
func (l *limitFlags) limits() *api.Limits {
	if l.IsZero() {
		return nil
	}
	return &l.Limits
}

// bounds tells limits to a person.
func bounds(l *api.Limits) string {
	if l == nil {
		return ""
	}
	var all []string
	for _, f := range []struct {
		n    int
		text string
	}{{l.DiskMiB, "disk %d MiB/s"}, {l.DiskOps, "disk %d/s"}, {l.NetworkInMbit, "network in %d Mbit/s"}, {l.NetworkOutMbit, "network out %d Mbit/s"}} {
		if f.n != 0 {
			all = append(all, fmt.Sprintf(f.text, f.n))
		}
	}
	return strings.Join(all, ", ")
}
