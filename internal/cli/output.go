package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pandastack/pandastack/client"
)

// print writes v as JSON with --json, and calls human otherwise.
func (a *app) print(v any, human func(w io.Writer) error) error {
	if a.json {
		return writeJSON(a.Stdout, v)
	}
	return human(a.Stdout)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// listCommand returns a command that prints a list: get fetches it, and row formats one element below head.
func listCommand[T any](
	a *app,
	short string,
	get func(ctx context.Context, cl *client.Client) ([]T, error),
	head []string,
	row func(T) []string,
) *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: short, Args: cobra.NoArgs}
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := a.dial()
		if err != nil {
			return err
		}
		list, err := get(c.Context(), cl)
		if err != nil {
			return err
		}
		return a.print(list, func(w io.Writer) error {
			rows := make([][]string, 0, len(list))
			for _, one := range list {
				rows = append(rows, row(one))
			}
			return table(w, head, rows)
		})
	}
	return c
}

// table writes aligned rows below a header.
func table(w io.Writer, head []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// fact is one line of the description of an object.
type fact struct{ name, value string }

// facts writes aligned names and values, without those whose value is empty.
func facts(w io.Writer, all []fact) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, f := range all {
		if f.value != "" {
			fmt.Fprintf(t, "%s\t%s\n", f.name, f.value)
		}
	}
	return t.Flush()
}

// statusf writes one line about progress to standard error, and nothing with --json.
func (a *app) statusf(format string, args ...any) {
	if !a.json {
		fmt.Fprintf(a.Stderr, format+"\n", args...)
	}
}

// age returns the time between t and now in one unit, such as 5m.
func age(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// size returns n bytes in binary units, such as 1.5 GiB.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// terminal returns the file behind a stream, and reports whether it is a terminal.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}
