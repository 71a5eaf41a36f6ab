package cmdutil

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/pandastack/pandastack/client"
)

// Factory has what commands need of the run that they belong to.
type Factory struct {
	JSON           bool // print JSON instead of tables
	Wide           bool // print whole tables, however narrow the terminal is
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Dial           func() (*client.Client, error) // returns a client of the API
}

// ExitCode ends a run with a code and no message: it is the exit code of a program that the command ran, or the command
// has printed its message already.
type ExitCode int

// Error implements error.
func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// Print writes v as JSON with --json, and calls human otherwise.
func (f *Factory) Print(v any, human func(w io.Writer) error) error {
	if f.JSON {
		return WriteJSON(f.Stdout, v)
	}
	if f.Wide {
		return human(struct{ io.Writer }{f.Stdout}) // which is no terminal
	}
	return human(f.Stdout)
}

// WriteJSON writes v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// ListCommand returns a command that prints a list: get fetches it, and row formats one element below head.
//
// The first column names the elements; it is all that is printed with --quiet. The columns called optional are left out
// of a narrow terminal.
func ListCommand[T any](
	f *Factory,
	short string,
	get func(ctx context.Context, cl *client.Client) ([]T, error),
	head []string,
	row func(T) []string,
	optional ...string,
) *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: short, Args: cobra.NoArgs}
	var quiet bool
	QuietFlag(c, &quiet, head[0])
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		list, err := get(c.Context(), cl)
		if err != nil {
			return err
		}
		if quiet && !f.JSON {
			return PrintFirst(f, list, func(one T) string { return row(one)[0] })
		}
		return PrintTable(f, list, head, row, optional...)
	}
	return c
}

// QuietFlag adds the flag --quiet to a command that lists what has a name in the column called first.
func QuietFlag(c *cobra.Command, quiet *bool, first string) {
	what := map[string]string{"ID": "ids", "PREFIX": "prefixes"}[first]
	if what == "" {
		what = "names"
	}
	c.Flags().BoolVarP(quiet, "quiet", "q", false, "print only "+what)
}

// PrintFirst prints what names the elements of a list, one on each line.
func PrintFirst[T any](f *Factory, list []T, name func(T) string) error {
	for _, one := range list {
		if _, err := fmt.Fprintln(f.Stdout, name(one)); err != nil {
			return err
		}
	}
	return nil
}

// PrintTable prints a list: as JSON with --json, else a table that row formats one element of, below head.
//
// The columns called optional are left out of a narrow terminal.
func PrintTable[T any](f *Factory, list []T, head []string, row func(T) []string, optional ...string) error {
	return f.Print(list, func(w io.Writer) error {
		rows := make([][]string, 0, len(list))
		for _, one := range list {
			rows = append(rows, row(one))
		}
		return Table(w, head, rows, optional...)
	})
}

// PrintLine prints v as JSON with --json, and a line of text otherwise.
func (f *Factory) PrintLine(v any, line string) error {
	return f.Print(v, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, line)
		return err
	})
}

// Statusf writes one line about progress to standard error, and nothing with --json.
func (f *Factory) Statusf(format string, args ...any) {
	if !f.JSON {
		fmt.Fprintf(f.Stderr, format+"\n", args...)
	}
}

// Age returns the time between t and now in one unit, such as 5m.
func Age(t, now time.Time) string {
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

// Size returns n bytes in binary units, such as 1.5 GiB.
func Size(n int64) string {
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

// Terminal returns the file behind a stream, and reports whether it is a terminal.
func Terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// OutputFlag is the flag --output, which sets the form of what f prints.
func (f *Factory) OutputFlag() pflag.Value { return (*outputFlag)(f) }

type outputFlag Factory

// String returns the form.
func (o *outputFlag) String() string {
	switch {
	case o.JSON:
		return "json"
	case o.Wide:
		return "wide"
	}
	return "text"
}

// Type returns what help calls the value.
func (o *outputFlag) Type() string { return "form" }

// Set sets the form.
func (o *outputFlag) Set(form string) error {
	switch form {
	case "text", "wide", "json":
		o.Wide, o.JSON = form == "wide", form == "json"
		return nil
	}
	return errors.New("give text, wide or json")
}
