// Package doctor shows what this machine can do: the probes as a table or as JSON.
//
// It owns the presentation of findings alone: the checks are those of package probe.
package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Check runs all probes, and calls each, which may be nil, with every result as it arrives. If the data directory is
// on an image of its own that is not mounted, Check mounts it meanwhile.
func Check(ctx context.Context, c probe.Config, each func(probe.Result)) []probe.Result {
	if _, err := os.Stat(disk.ImagePath(c.DataDir)); err == nil {
		// if it cannot be mounted, the probes report that
		if release, err := disk.EnsureDataDir(ctx, c.DataDir); err == nil {
			defer func() { _ = release(context.WithoutCancel(ctx)) }() // the next start mounts it anyway
		}
	}
	return probe.Run(ctx, probe.All(c), each)
}

// Healthy reports whether sandboxes will work: no probe failed.
func Healthy(results []probe.Result) bool {
	for _, r := range results {
		if r.Level == probe.Fail {
			return false
		}
	}
	return true
}

const nameWidth = 12

// Line prints one result: its level and name, the finding and, below it, the fix. width is that of the terminal; 0
// does not wrap.
func Line(w io.Writer, r probe.Result, width int) error {
	indent := strings.Repeat(" ", nameWidth+8)
	text := wrap(r.Text, width-len(indent), "\n"+indent)
	if _, err := fmt.Fprintf(w, "%-5s  %-*s %s\n", r.Level, nameWidth, r.Name, text); err != nil {
		return err
	}
	if r.Fix == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "%sfix: %s\n", indent, wrap(r.Fix, width-len(indent)-5, "\n"+indent+"     "))
	return err
}

// Table prints all results and a summary line.
func Table(w io.Writer, results []probe.Result, width int) error {
	for _, r := range results {
		if err := Line(w, r, width); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, Summary(results))
	return err
}

// Summary returns one sentence about all results.
func Summary(results []probe.Result) string {
	count := map[probe.Level]int{}
	for _, r := range results {
		count[r.Level]++
	}
	verdict := "This machine can run sandboxes."
	if count[probe.Fail] > 0 {
		verdict = "This machine cannot run sandboxes yet."
	}
	return fmt.Sprintf(
		"%s %d ok, %d to note, %d to mend.",
		verdict,
		count[probe.OK],
		count[probe.Warn],
		count[probe.Fail],
	)
}

// report is the JSON output. Fields are only ever added.
type report struct {
	Healthy bool    `json:"healthy"`
	Checks  []check `json:"checks"`
}

type check struct {
	Name   string      `json:"name"`
	Level  probe.Level `json:"level"`
	Text   string      `json:"text"`
	Fix    string      `json:"fix,omitempty"`
	TookMS float64     `json:"took_ms"`
}

// JSON writes all results as JSON.
func JSON(w io.Writer, results []probe.Result) error {
	out := report{Healthy: Healthy(results), Checks: []check{}}
	for _, r := range results {
		out.Checks = append(
			out.Checks,
			check{r.Name, r.Level, r.Text, r.Fix, float64(r.Took) / float64(time.Millisecond)},
		)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// wrap breaks text at spaces into lines of at most width runes, joined by sep. It does not break at a narrow width.
func wrap(text string, width int, sep string) string {
	if width < 20 {
		return text
	}
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteString(sep)
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
