//go:build e2e

package firsthour

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pandastack/pandastack/test/nodelab"
)

// TestPages runs the commands of the pages that a stranger reads first.
func TestPages(t *testing.T) {
	n := nodelab.Start(t, nodelab.DataDir(t))
	n.Bake("base")
	n.Bake("mini")
	t.Cleanup(func() { clean(t, n) })
	t.Run("README.md", func(t *testing.T) {
		runPage(t, n, "README.md", "PANDASTACK_API="+n.URL, "PANDASTACK_API_KEY="+n.AccessKey())
	})
	t.Run("getting-started.md", func(t *testing.T) { runPage(t, n, "docs/getting-started.md") })
	t.Run("mistakes", func(t *testing.T) { mistakes(t, n) })
}

// clean deletes what the pages create and do not delete.
func clean(t *testing.T, n *nodelab.Node) {
	t.Helper()
	if r := n.CLI("schedule", "delete", "report"); r.Code != 0 && r.Code != 5 {
		t.Errorf("schedule delete: exit code %d: %s", r.Code, r.Stderr)
	}
	n.Clean()
	n.Stop()
}

// home returns a directory with what the pages expect of their reader, and the environment of a shell there.
func home(t *testing.T, n *nodelab.Node, env ...string) (string, []string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"data/one.txt": "1\n", "odd/a:b c.txt": "odd\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := "PATH=" + filepath.Dir(nodelab.Program(t)) + ":" + os.Getenv("PATH")
	return dir, append(append(nodelab.Environment(n.Dir), "HOME="+dir, "TERM=xterm", path), env...)
}

// shown is what the pages say that commands print.
var shown = []struct{ command, output *regexp.Regexp }{
	{regexp.MustCompile(`print\(6 \* 7\)`), regexp.MustCompile(`^42\s*$`)},
	{regexp.MustCompile(`fork-tree`), regexp.MustCompile(`(?s)(sbx[a-z2-7]{20}\s+){4}$`)},
	{regexp.MustCompile(`--name before`), regexp.MustCompile(`snp[a-z2-7]{20}\s*$`)},
	{regexp.MustCompile(`sandbox create`), regexp.MustCompile(`is running from template`)},
	{regexp.MustCompile(`schedule trigger`), regexp.MustCompile(`hello`)},
	{regexp.MustCompile(`^curl`), regexp.MustCompile(`"id":\s*"sbx`)},
	{regexp.MustCompile(`sandbox list`), regexp.MustCompile(`(?m)^ID +STATUS +TEMPLATE`)},
}

// runPage runs the commands of a page.
func runPage(t *testing.T, n *nodelab.Node, page string, env ...string) {
	data, err := os.ReadFile(filepath.Join(nodelab.Repository(t), page))
	if err != nil {
		t.Fatal(err)
	}
	all, err := commands(string(data))
	if err != nil || len(all) == 0 {
		t.Fatalf("%s: %d commands, %v", page, len(all), err)
	}
	dir, env := home(t, n, env...)
	s := newShell(t, dir, env)
	for _, c := range all {
		text, err := fill(c.text, s.text(0))
		if err != nil {
			t.Fatalf("%s:%d: %s: %v", page, c.line, c.text, err)
		}
		// The pages name another machine and its key.
		text = strings.NewReplacer("http://host:7700", n.URL, "=pds_...", "="+n.AccessKey()).Replace(text)
		keys := ""
		if strings.Contains(text, "sandbox shell") {
			keys = "exit\n"
		}
		out, code := s.run(text, keys)
		if code != 0 {
			t.Errorf("%s:%d: %s: exit code %d:\n%s", page, c.line, c.text, code, out)
		}
		for _, want := range shown {
			if want.command.MatchString(c.text) && !want.output.MatchString(out) {
				t.Errorf("%s:%d: %s prints %q, want %s", page, c.line, c.text, out, want.output)
			}
		}
		fits(t, c.text, out)
	}
}

// head is the beginning of a table: words of capital letters.
var head = regexp.MustCompile(`^[A-Z]{2,}( ?[A-Z]+)*  +[A-Z]`)

// fits checks that no line of a table, and no line that is drawn in place, is wider than the terminal.
func fits(t *testing.T, command, out string) {
	t.Helper()
	table := false
	for line := range strings.SplitSeq(strings.ReplaceAll(out, "\r\n", "\n"), "\n") {
		table = line != "" && (table || head.MatchString(line))
		for i, part := range strings.Split(line, "\r") {
			part = strings.ReplaceAll(part, "\x1b[K", "")
			if n := utf8.RuneCountInString(part); (table || i > 0) && n > columns {
				t.Errorf("%s prints a line of %d columns: %q", command, n, part)
			}
		}
	}
}

// mistakes types what people mistype.
func mistakes(t *testing.T, n *nodelab.Node) {
	dir, env := home(t, n)
	s := newShell(t, dir, env)
	if out, code := s.run("pandastack sandbox create --template mini --metadata name=web >/dev/null", ""); code != 0 {
		t.Fatalf("create: exit code %d: %s", code, out)
	}
	for _, tt := range []struct {
		text string
		code int
		want string // in the output, with spaces for line ends
	}{
		{"pandastack sandbx list", 2, `unknown command "sandbx" in "pandastack"; did you mean sandbox?`},
		{"pandastack list", 2, "did you mean"},
		{"pandastack create", 2, "did you mean"},
		{"pandastack sandbox lst", 2, "did you mean get or list or ps?"},
		{"pandastack sandbox exec web echo a", 0, "a"}, // the name in place of the id
		{"pandastack sandbox exec wbe echo a", 5, `sandbox "wbe" not found: give its id, the name in its metadata`},
		{"pandastack sandbox get", 2, "usage: pandastack sandbox get ID"},
		{"pandastack sandbox create --template nothing", 2, `nothing`},
		{"pandastack sandbox create -t mini -memory 5", 2, "unknown shorthand flag"},
		{"pandastack sandbox create --tempalte mini", 2, "unknown flag: --tempalte"},
		{"pandastack sandbox exec web ls / -la", 0, "root"}, // a flag behind the argument
		{"pandastack sandbox list web --status running", 2, "usage: pandastack sandbox list"},
		{"pandastack sandbox delete", 2, "give the ids of sandboxes, or --all"},
		{"pandastack sandbox cp missing.txt web:/tmp/", 1, "missing.txt: no such file or directory"},
		{"pandastack template bake bsae", 5, `bsae`},
		{"pandastack -o yaml sandbox list", 2, "give text, wide or json"},
		{"pandastack schedule trigger reprot", 5, "pandastack schedule list"},
		{"pandastack snapshot get before-all", 5, "give its id, its name"},
		{"pandastack --key pds_wrong sandbox list", 3, "give a key of this node with --key or PANDASTACK_API_KEY"},
		{"PANDASTACK_API=" + n.URL + " pandastack --data-dir /none sandbox list", 3, "PANDASTACK_API_KEY"},
		{"pandastack --api http://127.0.0.1:1 sandbox list", 12, "cannot reach"},
		{"pandastack --api localhost:7700 sandbox list", 2, "is not like http://host:port"},
		{"pandastack --api " + n.URL + "/v1 sandbox list", 2, "ends in /v1"},
		{"mkfifo odd/pipe; pandastack sandbox cp odd web:/tmp/", 1, `"odd/pipe" is a fifo, which cannot be copied`},
		{"rm odd/pipe; pandastack sandbox cp odd web:/tmp/", 0, ""},
		{"pandastack sandbox exec web cat '/tmp/odd/a:b c.txt'", 0, "odd"},
		{"pandastack sandbox cp 'odd/a:b c.txt' web:/tmp/", 0, ""},
		{"pandastack --api " + strings.Replace(n.URL, "http:", "https:", 1) + " sandbox list", 12, "cannot reach"},
	} {
		out, code := s.run(tt.text, "")
		if got := strings.Join(strings.Fields(out), " "); code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("%s: exit code %d, %s\nwant %d and %s", tt.text, code, out, tt.code, tt.want)
		}
		if strings.Contains(out, "goroutine ") || strings.Count(out, "\n") > 24 {
			t.Errorf("%s prints more than a message: %s", tt.text, out)
		}
		fits(t, tt.text, out)
	}
}
