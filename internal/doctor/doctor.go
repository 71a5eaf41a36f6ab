// Package doctor shows a person what this machine can do: the probes as a table or as JSON.
//
// It owns the words around findings and nothing else: what is checked, and how, is package probe's.
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

// Check runs all probes and tells each result to each, which may be nil, as it comes. A data directory
// on an image of its own is mounted for the while, when nobody has mounted it.
func Check(ctx context.Context, c probe.Config, each func(probe.Result)) []probe.Result {
	if _, err := os.Stat(disk.ImagePath(c.DataDir)); err == nil {
		// Where it cannot be mounted, the probes say so.
		if release, err := disk.EnsureDataDir(ctx, c.DataDir); err == nil {
			defer func() { _ = release(context.WithoutCancel(ctx)) }() // the next start mounts it anyway
		}
	}
	return probe.Run(ctx, probe.All(c), each)
}

// Healthy tells whether sandboxes will work: nothing failed.
func Healthy(results []probe.Result) bool {
	for _, r := range results {
		if r.Level == probe.Fail {
			return false
		}
	}
	return true
}

const nameWidth = 12

// Line writes one result for a person: its level and name, the finding and, below it, the fix. width is
// that of the terminal; 0 does not wrap.
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

// Table writes all results and a line that sums them up.
func Table(w io.Writer, results []probe.Result, width int) error {
	for _, r := range results {
		if err := Line(w, r, width); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, Summary(results))
	return err
}

// Summary is one sentence on all results.
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

// report is the shape of the JSON output. It only grows.
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

// JSON writes all results for programs.
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

// wrap breaks text at spaces into lines of at most width runes, joined by sep. A narrow width does not
// break at all.
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
