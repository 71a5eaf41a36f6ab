package cmdutil

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	gap     = 2  // spaces between columns
	minCell = 8  // to which cells are cut at least
	minID   = 12 // runes of an id that are shown at least
	cut     = "..."
)

// Columns returns the width of the terminal that w is, or 0 if it is none.
//
// A writer with a method Columns has the width that the method returns.
func Columns(w io.Writer) int {
	if sized, ok := w.(interface{ Columns() int }); ok {
		return sized.Columns()
	}
	screen, ok := Terminal(w)
	if !ok {
		return 0
	}
	cols, _, err := term.GetSize(int(screen.Fd()))
	if err != nil {
		return 0
	}
	return cols
}

// Table writes aligned rows below a header. In a terminal no line is wider than that.
//
// To fit, ids are shortened to a unique beginning that commands take, then the columns called optional are left out,
// the first of them first, and then the widest cells are cut.
func Table(w io.Writer, head []string, rows [][]string, optional ...string) error {
	t := newGrid(head, rows)
	if limit := Columns(w); limit > 0 {
		t.fit(limit, optional)
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// grid is the content of a table by its columns; the first cell of each is the header.
type grid [][]string

func newGrid(head []string, rows [][]string) grid {
	t := make(grid, len(head))
	for i, name := range head {
		t[i] = append(t[i], name)
		for _, r := range rows {
			t[i] = append(t[i], printable(r[i]))
		}
	}
	return t
}

// printable returns text on one line and without what a terminal would obey: names of objects are of anybody.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return utf8.RuneError
		}
		return r
	}, text)
}

func width(column []string) int {
	n := 0
	for _, cell := range column {
		n = max(n, utf8.RuneCountInString(cell))
	}
	return n
}

// excess returns by how many runes the widest line is wider than limit.
func (t grid) excess(limit int) int {
	n := gap * (len(t) - 1)
	for _, column := range t {
		n += width(column)
	}
	return n - limit
}

// fit makes no line wider than limit.
func (t *grid) fit(limit int, optional []string) {
	for i := 0; i < len(*t) && t.excess(limit) > 0; i++ {
		shortenIDs((*t)[i][1:])
	}
	for _, name := range optional {
		if t.excess(limit) > 0 {
			*t = slices.DeleteFunc(*t, func(column []string) bool { return column[0] == name })
		}
	}
	for over := t.excess(limit); over > 0; over = t.excess(limit) {
		widest := t.widest()
		if widest < 0 {
			return // a terminal of some columns
		}
		column := (*t)[widest]
		clip(column, max(minCell, width(column)-over))
	}
}

// widest returns the index of the widest column that can be cut; the first, which names the object, is the last to be.
func (t grid) widest() int {
	best, most := -1, minCell
	for i, column := range t {
		if n := width(column); i > 0 && n > most {
			best, most = i, n
		}
	}
	if best < 0 && len(t) > 0 && width(t[0]) > minCell {
		return 0
	}
	return best
}

func clip(column []string, limit int) {
	for i, cell := range column {
		if r := []rune(cell); len(r) > limit {
			column[i] = string(r[:limit-len(cut)]) + cut
		}
	}
}

// ids are those of which commands take the beginning: of sandboxes, snapshots and databases.
var ids = regexp.MustCompile(`^(sbx|snp|dbs)[a-z0-9]{20}$`)

// shortenIDs shortens the ids in a column to the shortest beginning by which they differ.
func shortenIDs(column []string) {
	for _, cell := range column {
		if cell != "" && !ids.MatchString(cell) {
			return
		}
	}
	for n := minID; ; n++ {
		begins := map[string]string{}
		unique := true
		for _, id := range column {
			if id == "" {
				continue
			}
			if n >= len(id) {
				return
			}
			other, ok := begins[id[:n]]
			unique = unique && (!ok || other == id)
			begins[id[:n]] = id
		}
		if unique {
			for i, id := range column {
				column[i] = id[:min(n, len(id))]
			}
			return
		}
	}
}

// String returns the lines of the table.
func (t grid) String() string {
	if len(t) == 0 {
		return ""
	}
	var b strings.Builder
	for row := range t[0] {
		var line strings.Builder
		for _, column := range t {
			fmt.Fprintf(&line, "%-*s", width(column)+gap, column[row])
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Fact is one line of the description of an object: a name and a value.
type Fact [2]string

// Facts writes aligned names and values, without those whose value is empty.
//
// In a terminal, values that do not fit continue on lines of their own. A word that does not fit a line, such as a URL,
// stays whole, so that it can be copied.
func Facts(w io.Writer, all []Fact) error {
	names := 0
	for _, f := range all {
		if f[1] != "" {
			names = max(names, utf8.RuneCountInString(f[0]))
		}
	}
	var b strings.Builder
	limit := Columns(w) - names - gap
	for _, f := range all {
		if f[1] == "" {
			continue
		}
		for i, line := range wrap(f[1], limit) {
			if i > 0 {
				f[0] = ""
			}
			fmt.Fprintf(&b, "%-*s%s\n", names+gap, f[0], line)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks the lines of text at spaces so that they have at most limit runes. It does not break for a narrow limit.
func wrap(text string, limit int) []string {
	var lines []string
	for paragraph := range strings.SplitSeq(text, "\n") {
		if limit < 2*minCell || utf8.RuneCountInString(paragraph) <= limit {
			lines = append(lines, paragraph)
			continue
		}
		line := ""
		for _, word := range strings.Fields(paragraph) {
			switch {
			case line == "":
				line = word
			case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= limit:
				line += " " + word
			default:
				lines, line = append(lines, line), word
			}
		}
		lines = append(lines, line)
	}
	return lines
}
