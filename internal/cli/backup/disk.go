package backup

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/internal/cli/cmdutil"
	"github.com/pandastack/pandastack/internal/host/diskusage"
)

// Disk returns the command that shows what the data directory of the node is used for.
func Disk(f *cmdutil.Factory, h Host) *cobra.Command {
	return &cobra.Command{
		Use:   "disk",
		Short: "Show what the data directory of the node on this machine is used for",
		Long: "Show what the data directory of the node on this machine is used for, as root, and what removes it.\n" +
			"SIZE counts blocks that files share in each of them; OWN counts those that nothing else has: what\n" +
			"removing all of it makes free. The node may run.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := h.Settings()
			if err != nil {
				return err
			}
			u, err := diskusage.Measure(c.Context(), cfg.DataDir)
			if err != nil {
				return h.Local(err)
			}
			return f.Print(u, func(w io.Writer) error { return printDisk(w, u) })
		},
	}
}

// printDisk writes a table of what space is used for.
func printDisk(w io.Writer, u diskusage.Usage) error {
	var rows [][]string
	for _, one := range u.Uses {
		if one.Files > 0 {
			rows = append(rows, []string{
				one.Name, fmt.Sprint(one.Files), cmdutil.Size(one.Bytes), cmdutil.Size(one.OwnBytes), one.Remove,
			})
		}
	}
	rows = append(rows,
		[]string{"shared", "", cmdutil.Size(u.SharedBytes), "", ""},
		[]string{"free", "", cmdutil.Size(u.FreeBytes), "", ""},
		[]string{"total", "", cmdutil.Size(u.TotalBytes), "", u.DataDir})
	return cmdutil.Table(w, []string{"USE", "FILES", "SIZE", "OWN", "REMOVE WITH"}, rows)
}
