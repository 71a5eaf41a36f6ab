//go:build e2e

package firsthour

import (
	"fmt"
	"strings"
	"testing"
)

func TestCommands(t *testing.T) {
	page := strings.ReplaceAll(`# Page

'''sh
a   # comment
# only a comment
b \
  c
'''

<!-- not run by test/firsthour: it installs packages -->
'''sh
install
'''

'''
output
'''

'''sh
d
'''
`, "'''", "```")
	got, err := commands(page)
	want := []command{{4, "a   # comment"}, {6, "b \\\n  c"}, {20, "d"}}
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("commands = %v, %v; want %v", got, err, want)
	}
	for _, wrong := range []string{marker + "-->\n", marker + "because -->\ntext\n", marker + "because\n"} {
		if got, err := commands(wrong); err == nil {
			t.Errorf("commands(%q) = %v, want an error", wrong, got)
		}
	}
}

func TestFill(t *testing.T) {
	id := func(kind, letter string) string { return kind + strings.Repeat(letter, 20) }
	printed := id("sbx", "a") + "\n" + id("sbx", "b") + "\n" + id("snp", "c") + "\n"
	for text, want := range map[string]string{
		"keep <child>":  "keep " + id("sbx", "b"),
		"from <snp...>": "from " + id("snp", "c"), "plain < file": "plain < file",
	} {
		if got, err := fill(text, printed); err != nil || got != want {
			t.Errorf("fill(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	if got, err := fill("<dbs...>", printed); err == nil {
		t.Errorf("a placeholder without an id becomes %q", got)
	}
}
