package vmm

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AgentPrefix begins what the guest agent prints on the console when it ends.
const AgentPrefix = "pandastack-guest:"

// Bounds of ConsoleTail: lines, and bytes of a line before escaping.
const (
	tailLines     = 5
	tailLineBytes = 200
)

// ConsoleTail returns the part of a guest's console that explains the guest's end, for an error.
// That is the agent's last message and the kernel's panic, if there are any, and the last lines. The guest chooses
// every byte of a console, so the result is one line without control characters, of at most seven short pieces.
func ConsoleTail(console []byte) string {
	lines := slices.DeleteFunc(strings.FieldsFunc(string(console), func(r rune) bool { return r == '\n' || r == '\r' }),
		func(line string) bool { return strings.TrimSpace(line) == "" })
	last := max(0, len(lines)-tailLines)
	var keep []int
	for _, mark := range []string{AgentPrefix, "Kernel panic"} {
		for i, line := range slices.Backward(lines[:last]) {
			if strings.Contains(line, mark) {
				keep = append(keep, i)
				break
			}
		}
	}
	slices.Sort(keep)
	var out []string
	for _, i := range slices.Compact(keep) {
		out = append(out, printable(lines[i]))
	}
	for _, line := range lines[last:] {
		out = append(out, printable(line))
	}
	return strings.Join(out, "; ")
}

// printable returns the beginning of a line with everything escaped that is not graphic.
func printable(line string) string {
	if len(line) > tailLineBytes {
		end := tailLineBytes
		for end > tailLineBytes-utf8.UTFMax && !utf8.RuneStart(line[end]) {
			end--
		}
		line = line[:end]
	}
	q := strconv.QuoteToGraphic(line)
	return q[1 : len(q)-1]
}
