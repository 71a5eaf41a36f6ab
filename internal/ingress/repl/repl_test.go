package repl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pandastack/pandastack/internal/contract/guestapi"
	"github.com/pandastack/pandastack/internal/guest/agent"
	"github.com/pandastack/pandastack/internal/guest/process"
	"github.com/pandastack/pandastack/internal/ingress/repl"
	"github.com/pandastack/pandastack/internal/lib/budget"
)

// newGuest returns the guest agent as a plain process of this machine, which must have the program of a language.
func newGuest(t *testing.T, l repl.Language) guestapi.Guest {
	t.Helper()
	program := map[repl.Language]string{repl.Python: "python3", repl.JavaScript: "node", repl.Bash: "bash"}[l]
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("probe program: %s is not installed on this machine", program)
	}
	b := agent.New(agent.Config{Reaper: process.NewReaper(false)})
	t.Cleanup(b.Close)
	return b
}

// testTimeout is how long a cell of a test may take on a busy machine.
const testTimeout = time.Minute

type cellResult struct {
	repl.Outcome
	out, err, main, errText string
	results                 []map[string]any
}

// decoded returns the forms of a result with JSON as values.
func decoded(t *testing.T, forms map[string]any) map[string]any {
	t.Helper()
	data, err := json.Marshal(forms)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func run(t *testing.T, r *repl.Runner, g guestapi.Guest, c repl.Context, cell repl.Cell) cellResult {
	t.Helper()
	if cell.Timeout == 0 {
		cell.Timeout = testTimeout
	}
	var got cellResult
	out, err := r.Run(t.Context(), "sbx", g, c, cell, func(e repl.Event) error {
		switch e.Kind {
		case repl.Stdout:
			got.out += e.Text
		case repl.Stderr:
			got.err += e.Text
		case repl.Failed:
			got.errText = e.Name + ": " + e.Value
		case repl.Result:
			got.results = append(got.results, decoded(t, e.Data))
			if e.Main {
				got.main = fmt.Sprint(e.Data["text/plain"])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("Run(%q): %v", cell.Code, err)
	}
	got.Outcome = out
	return got
}

func TestCells(t *testing.T) {
	for _, c := range []struct {
		name      string
		lang      repl.Language
		code      []string // cells; the last one is checked
		env       map[string]string
		last      int // number of the cell that has env; 0: the last one
		want      cellResult
		wantCode  int
		wantInErr string
	}{
		{name: "python-state", lang: repl.Python, code: []string{"x = 41", "print('grüße 🐼')\nx + 1"},
			want: cellResult{out: "grüße 🐼\n", main: "42"}},
		{name: "python-expression", lang: repl.Python, code: []string{"'\"ü\\n'"}, want: cellResult{main: "'\"ü\\n'"}},
		{name: "python-exit-true", lang: repl.Python, code: []string{"raise SystemExit(True)"}, wantCode: 1},
		{name: "python-semicolon", lang: repl.Python, code: []string{"1;"}},
		{name: "python-error", lang: repl.Python, code: []string{"1/0"},
			want: cellResult{errText: "ZeroDivisionError: division by zero"}, wantCode: 1},
		{name: "python-syntax", lang: repl.Python, code: []string{"x ="},
			want: cellResult{errText: "SyntaxError: invalid syntax (<cell 1>, line 1)"}, wantCode: 1},
		{name: "python-exit", lang: repl.Python, code: []string{"import sys; sys.exit(3)"}, wantCode: 3},
		{name: "python-after-exit", lang: repl.Python, code: []string{"x = 1; import sys; sys.exit(3)", "x"},
			want: cellResult{main: "1"}},
		{name: "python-child", lang: repl.Python, code: []string{"import os; _ = os.system('echo out; echo err >&2')"},
			want: cellResult{out: "out\n", err: "err\n"}},
		{name: "python-await", lang: repl.Python, code: []string{"import asyncio\nawait asyncio.sleep(0)\n7"},
			want: cellResult{main: "7"}},
		{name: "python-fork", lang: repl.Python, code: []string{"import os\nif os.fork() == 0: pass",
			"import time, os\n5"}, want: cellResult{main: "5"}},
		{name: "python-stdin", lang: repl.Python, code: []string{"input()"},
			want: cellResult{errText: "EOFError: EOF when reading a line"}, wantCode: 1},
		{name: "python-env", lang: repl.Python, code: []string{"import os; os.environ['A']"},
			env: map[string]string{"A": "b c"}, want: cellResult{main: "'b c'"}},
		{name: "python-indented", lang: repl.Python, code: []string{"    x = 20\n    if x:\n        y = 1\n    x + y"},
			want: cellResult{main: "21"}},
		{name: "python-env-of-an-earlier-cell", lang: repl.Python, last: 1,
			code: []string{"import os; os.environ['A']", "os.environ.get('A', 'gone')"},
			env:  map[string]string{"A": "b"}, want: cellResult{main: "'gone'"}},
		{name: "javascript-import", lang: repl.JavaScript,
			code: []string{"import path, { join as j } from 'node:path'\nimport * as os from \"node:os\";\n" +
				"import 'node:fs'\nj('a', path.basename('/x/b'))", "typeof os.cpus + j('c', 'd')"},
			want: cellResult{main: "functionc/d"}},
		{name: "javascript-await-result", lang: repl.JavaScript,
			code: []string{"\n    async function f() {\n        return 'hello'\n    }\n\n    await f()\n    "},
			want: cellResult{main: "hello"}},
		{name: "javascript-env-of-an-earlier-cell", lang: repl.JavaScript, last: 1,
			code: []string{"1", "process.env.A"}, env: map[string]string{"A": "b"}},
		{name: "bash-env-of-an-earlier-cell", lang: repl.Bash, last: 1,
			code: []string{"B=kept; C='old one'; export C; echo $A", "echo \"[$A] $B $C\"; env | grep -c ^C="},
			env:  map[string]string{"A": "1"}, want: cellResult{out: "[] kept old one\n1\n"}},
		{name: "bash-env-comes-back", lang: repl.Bash, last: 2,
			code: []string{"A=mine", "echo $A", "echo $A; env | grep ^A= || echo none"},
			env:  map[string]string{"A": "it's"}, want: cellResult{out: "mine\nnone\n"}},
		{name: "javascript-state", lang: repl.JavaScript, code: []string{"const x = 41",
			"console.log('grüße 🐼'); x + 1"}, want: cellResult{out: "grüße 🐼\n", main: "42"}},
		{name: "javascript-error", lang: repl.JavaScript, code: []string{"nope()"},
			want: cellResult{errText: "ReferenceError: nope is not defined"}, wantCode: 1},
		{name: "javascript-await", lang: repl.JavaScript, code: []string{"const y = await Promise.resolve(5)", "y * 2"},
			want: cellResult{main: "10"}},
		{name: "javascript-require", lang: repl.JavaScript, code: []string{"require('path').join('a', 'b')"},
			want: cellResult{main: "a/b"}},
		{name: "bash-state", lang: repl.Bash, code: []string{"x=41; cd /", "echo $((x+1)) $PWD; echo grüße >&2"},
			want: cellResult{out: "42 /\n", err: "grüße\n"}},
		{name: "bash-failing", lang: repl.Bash, code: []string{"(exit 4)"}, wantCode: 4},
		{name: "bash-env", lang: repl.Bash, code: []string{"echo \"$A\""}, env: map[string]string{"A": "it's $x"},
			want: cellResult{out: "it's $x\n"}},
		{name: "bash-syntax", lang: repl.Bash, code: []string{"if"}, wantCode: 2, wantInErr: "syntax error"},
		{name: "bash-multiline", lang: repl.Bash, code: []string{"f() {\n echo in f\n}\ncat <<E\nhere\nE\nf"},
			want: cellResult{out: "here\nin f\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t, c.lang)
			box, err := repl.Create(t.Context(), g, c.lang, "/tmp", "")
			if err != nil {
				t.Fatal(err)
			}
			var r repl.Runner
			var got cellResult
			for i, code := range c.code {
				cell := repl.Cell{Code: code}
				if i == len(c.code)-1 && c.last == 0 || i == c.last-1 {
					cell.Env = c.env
				}
				got = run(t, &r, g, box, cell)
			}
			if c.wantInErr != "" && !strings.Contains(got.err, c.wantInErr) {
				t.Errorf("stderr is %q, want it to contain %q", got.err, c.wantInErr)
			}
			if got.out != c.want.out || c.wantInErr == "" && got.err != c.want.err || got.main != c.want.main ||
				got.errText != c.want.errText {
				t.Errorf("got out %q, err %q, result %q, error %q; want %q, %q, %q, %q",
					got.out, got.err, got.main, got.errText, c.want.out, c.want.err, c.want.main, c.want.errText)
			}
			if got.Code != c.wantCode {
				t.Errorf("exit code is %d, want %d", got.Code, c.wantCode)
			}
		})
	}
}

// Each language shows text, pictures, pages, JSON, charts and tables.
func TestRichResults(t *testing.T) {
	const png, chart, data = "iVBORw0KGgoAAAAA", "application/vnd.pandastack.chart+json",
		"application/vnd.pandastack.data+json"
	picture := filepath.Join(t.TempDir(), "picture.png")
	for _, c := range []struct {
		name string
		lang repl.Language
		code string
		kind string
		want any
	}{
		{"python-png", repl.Python, "class T:\n  def _repr_png_(self):\n    import base64\n    return " +
			"base64.b64decode('" + png + "')\nT()", "image/png", png},
		{"python-svg", repl.Python, "class T:\n  def _repr_svg_(self): return '<svg/>'\nT()", "image/svg+xml",
			"<svg/>"},
		{"python-html", repl.Python, "class T:\n  def _repr_html_(self): return '<b>grüß</b>'\nT()", "text/html",
			"<b>grüß</b>"},
		{"python-json", repl.Python, "class T:\n  def _repr_json_(self): return {'a': [1]}\nT()", "application/json",
			map[string]any{"a": []any{1.0}}},
		{"python-display", repl.Python, "display('x')", "text/plain", "'x'"},
		{"javascript-png", repl.JavaScript, "Buffer.from('" + png + "', 'base64')", "image/png", png},
		{"javascript-display-png", repl.JavaScript, "display.png('" + png + "')", "image/png", png},
		{"javascript-svg", repl.JavaScript, "({toSVG() { return '<svg/>' }})", "image/svg+xml", "<svg/>"},
		{"javascript-html", repl.JavaScript, "display.html('<b>grüß</b>')", "text/html", "<b>grüß</b>"},
		{"javascript-own", repl.JavaScript, "({[Symbol.for('Jupyter.display')]() { return {'text/markdown': '**x**'} " +
			"}})", "text/markdown", "**x**"},
		{"javascript-json", repl.JavaScript, "({a: [1]})", "application/json", map[string]any{"a": []any{1.0}}},
		{"javascript-chart", repl.JavaScript, "display.chart({type: 'line'})", chart, map[string]any{"type": "line"}},
		{"javascript-data", repl.JavaScript, "[{a: 1, b: 'x'}, {a: 2}]", data, map[string]any{"a": []any{1.0, 2.0},
			"b": []any{"x", nil}}},
		{"javascript-no-data", repl.JavaScript, "[{a: 1n}, {f() {}}]", data, nil},
		{"bash-png", repl.Bash, "base64 -d <<<'" + png + "' >" + picture + "; display " + picture, "image/png", png},
		{"bash-svg", repl.Bash, "display <(echo -n '<svg/>') image/svg+xml", "image/svg+xml", "<svg/>"},
		{"bash-html", repl.Bash, "display <(echo -n '<b>grüß</b>') text/html", "text/html", "<b>grüß</b>"},
		{"bash-json", repl.Bash, `display <(echo '{"a":[1]}') application/json`, "application/json",
			map[string]any{"a": []any{1.0}}},
		{"bash-chart", repl.Bash, `display <(echo '{"type":"line"}') ` + chart, chart, map[string]any{"type": "line"}},
		{"bash-data", repl.Bash, `display <(printf 'a,b\n1,x\n') text/csv`, data, map[string]any{"a": []any{1.0},
			"b": []any{"x"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t, c.lang)
			box, err := repl.Create(t.Context(), g, c.lang, "/tmp", "")
			if err != nil {
				t.Fatal(err)
			}
			var r repl.Runner
			got := run(t, &r, g, box, repl.Cell{Code: c.code})
			if len(got.results) != 1 || !reflect.DeepEqual(got.results[0][c.kind], c.want) ||
				got.results[0]["text/plain"] == nil ||
				got.err != "" {
				t.Errorf("results are %v with stderr %q, want %s %v", got.results, got.err, c.kind, c.want)
			}
		})
	}
}

// A cell is interrupted when its timeout passes, and its context keeps running with its variables.
func TestTimeoutKeepsContext(t *testing.T) {
	for lang, code := range map[repl.Language][3]string{
		repl.Python:     {"x = 42", "import time\nwhile True: time.sleep(0.01)", "print(x)"},
		repl.JavaScript: {"const x = 42", "for (;;) {}", "console.log(x)"},
		repl.Bash:       {"x=42", "sleep 1000", "echo $x"},
	} {
		t.Run(string(lang), func(t *testing.T) {
			g := newGuest(t, lang)
			box, err := repl.Create(t.Context(), g, lang, "", "")
			if err != nil {
				t.Fatal(err)
			}
			var r repl.Runner
			run(t, &r, g, box, repl.Cell{Code: code[0]})
			if got := run(t, &r, g, box, repl.Cell{Code: code[1], Timeout: time.Second}); !got.Interrupted {
				t.Errorf("endless cell = %+v, want it interrupted", got)
			}
			if got := run(t, &r, g, box, repl.Cell{Code: code[2]}); got.out != "42\n" || got.Interrupted {
				t.Errorf("cell after the interrupt = %+v, want 42", got)
			}
		})
	}
}

// slowInputGuest is a guest that accepts input of processes that have exited, as if it were still on its way.
type slowInputGuest struct{ guestapi.Guest }

func (g slowInputGuest) Attach(
	ctx context.Context,
	ref guestapi.ProcessRef,
	from guestapi.Offsets,
) (guestapi.Process, error) {
	p, err := g.Guest.Attach(ctx, ref, from)
	return discardingProcess{p}, err
}

type discardingProcess struct{ guestapi.Process }

func (discardingProcess) Write(b []byte) (int, error) { return len(b), nil }

func TestContexts(t *testing.T) {
	g := newGuest(t, repl.Python)
	var r repl.Runner
	one, err := repl.Create(t.Context(), g, repl.Python, "", "")
	if err != nil {
		t.Fatal(err)
	}
	two, err := repl.Create(t.Context(), g, repl.Python, "", "")
	if err != nil {
		t.Fatal(err)
	}
	run(t, &r, g, one, repl.Cell{Code: "x = 'one'"})
	if got := run(t, &r, g, two, repl.Cell{Code: "x"}); got.errText == "" {
		t.Error("contexts share variables, want them separate")
	}
	all, err := repl.List(t.Context(), g)
	if err != nil || len(all) != 2 {
		t.Fatalf("List() = %v, %v, want two contexts", all, err)
	}
	if err := r.End(t.Context(), "sbx", g, one); err != nil {
		t.Fatal(err)
	}
	for what, g := range map[string]guestapi.Guest{"a context that was ended": g,
		"one whose end the channel tells late": slowInputGuest{g}} {
		if _, err := r.Run(t.Context(), "sbx", g, one, repl.Cell{Code: "x"},
			func(repl.Event) error { return nil }); !errors.Is(
			err,
			guestapi.ErrNotFound,
		) {
			t.Errorf("Run() in %s = %v, want %v", what, err, guestapi.ErrNotFound)
		}
	}
	if got := run(t, &r, g, two, repl.Cell{Code: "2"}); got.main != "2" {
		t.Errorf("the result in the other context is %q, want its own", got.main)
	}
}

// Many cells sent at once to one context run one after the other, and each gets its own result.
// TestContextsAreLimited starts more contexts at once than a sandbox may have.
func TestContextsAreLimited(t *testing.T) {
	g := newGuest(t, repl.Bash)
	r := repl.Runner{MaxContexts: 3}
	first, err := r.Create(t.Context(), "sbx", g, repl.Bash, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var started atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := r.Create(t.Context(), "sbx", g, repl.Bash, "", "")
			over, ok := errors.AsType[*budget.Error](err)
			switch {
			case err == nil:
				started.Add(1)
			case !errors.Is(err, guestapi.ErrBusy) || !ok || over.Used != 3 || over.Allowed != 3:
				t.Errorf("Create() over the limit = %v, want ErrBusy with 3 of 3 used", err)
			}
		})
	}
	all.Wait()
	if n := started.Load(); n != 2 {
		t.Errorf("%d contexts were started beside the first, want 2", n)
	}
	if _, err := repl.Default(t.Context(), g, repl.Bash); err != nil {
		t.Errorf("the default context: %v, want it started", err)
	}
	for _, c := range []repl.Context{first, {ID: repl.DefaultID(repl.Bash), Language: repl.Bash}} {
		if err := r.End(t.Context(), "sbx", g, c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Create(t.Context(), "sbx", g, repl.Bash, "", ""); err != nil {
		t.Errorf("Create() after a context has ended: %v", err)
	}
}

func TestCellsTakeTurns(t *testing.T) {
	g := newGuest(t, repl.Python)
	box, err := repl.Create(t.Context(), g, repl.Python, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var r repl.Runner
	run(t, &r, g, box, repl.Cell{Code: "n = 0"})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			var main string
			_, err := r.Run(
				t.Context(),
				"sbx",
				g,
				box,
				repl.Cell{Code: fmt.Sprintf("n += 1\n%d", i), Timeout: testTimeout},
				func(e repl.Event) error {
					if e.Main {
						main = fmt.Sprint(e.Data["text/plain"])
					}
					return nil
				},
			)
			if err != nil || main != fmt.Sprint(i) {
				t.Errorf("result of cell %d is %q, %v, want its own", i, main, err)
			}
		})
	}
	wg.Wait()
	if got := run(t, &r, g, box, repl.Cell{Code: "n"}); got.main != "8" {
		t.Errorf("%s cells ran, want 8", got.main)
	}
}

// The id of a context is enough to run a cell in it.
func TestParseID(t *testing.T) {
	for _, l := range repl.Languages() {
		c, err := repl.ParseID(repl.DefaultID(l))
		if err != nil || c.Language != l || "repl-"+string(l)+"-"+c.ID != repl.Spec(l, "", "").Tag {
			t.Errorf("ParseID(default id of %s) = %+v, %v", l, c, err)
		}
	}
	for _, id := range []string{"", "py", "de", "defaults", "py../x", "pyABC", "js" + strings.Repeat("0", 33), "py-1"} {
		if c, err := repl.ParseID(id); !errors.Is(err, guestapi.ErrNotFound) {
			t.Errorf("ParseID(%q) = %+v, %v, want %v", id, c, err, guestapi.ErrNotFound)
		}
	}
	g := newGuest(t, repl.Python)
	box, err := repl.Create(t.Context(), g, repl.Python, "", "")
	if err != nil {
		t.Fatal(err)
	}
	named, err := repl.ParseID(box.ID)
	if err != nil {
		t.Fatal(err)
	}
	var r repl.Runner
	run(t, &r, g, box, repl.Cell{Code: "x = 'here'"})
	if got := run(t, &r, g, named, repl.Cell{Code: "x"}); got.main != "'here'" {
		t.Errorf("the result in the context of an id is %q", got.main)
	}
}

// A cell that changed the handler of the signal does not keep later cells from being interrupted.
func TestCellsCannotBlockInterrupts(t *testing.T) {
	g := newGuest(t, repl.Python)
	box, err := repl.Create(t.Context(), g, repl.Python, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var r repl.Runner
	run(t, &r, g, box, repl.Cell{Code: "import signal, time\nx = 1\nsignal.signal(signal.SIGINT, signal.SIG_IGN)"})
	if got := run(t, &r, g, box, repl.Cell{Code: "time.sleep(1000)",
		Timeout: 200 * time.Millisecond}); !got.Interrupted ||
		!strings.HasPrefix(got.errText, "KeyboardInterrupt") {
		t.Errorf("endless cell: interrupted %v with %q, want an interrupt", got.Interrupted, got.errText)
	}
	if got := run(t, &r, g, box, repl.Cell{Code: "x"}); got.main != "1" {
		t.Errorf("the result of the next cell is %q", got.main)
	}
}

// A cell whose timeout passes before its driver has started it is interrupted, and its context keeps running.
func TestInterruptBeforeCellStarts(t *testing.T) {
	for lang, code := range map[repl.Language][2]string{
		repl.Python:     {"import time\ntime.sleep(1000)", "print(42)"},
		repl.JavaScript: {"for (;;) {}", "console.log(42)"},
		repl.Bash:       {"sleep 1000", "echo 42"},
	} {
		t.Run(string(lang), func(t *testing.T) {
			t.Parallel()
			g := newGuest(t, lang)
			box, err := repl.Create(t.Context(), g, lang, "", "")
			if err != nil {
				t.Fatal(err)
			}
			var r repl.Runner
			for _, which := range []string{"first",
				"second"} { // the driver has just been started before the first one
				if got := run(t, &r, g, box, repl.Cell{Code: code[0], Timeout: time.Nanosecond}); !got.Interrupted {
					t.Errorf("the %s endless cell = %+v, want it interrupted", which, got)
				}
				if got := run(t, &r, g, box, repl.Cell{Code: code[1]}); got.out != "42\n" {
					t.Errorf("the cell after the interrupt of the %s = %+v, want a result", which, got)
				}
			}
		})
	}
}

// A signal that arrives while a shell still decodes a cell does not change the cell.
func TestSignalWhileCellIsDecoded(t *testing.T) {
	g := newGuest(t, repl.Bash)
	box, err := repl.Create(t.Context(), g, repl.Bash, "", "")
	if err != nil {
		t.Fatal(err)
	}
	var r repl.Runner
	run(
		t,
		&r,
		g,
		box,
		repl.Cell{Code: `base64() { kill -INT 0; command base64 "$@"; }`},
	) // the signal reaches the whole group
	for range 3 {
		if got := run(t, &r, g, box, repl.Cell{Code: "echo 42"}); got.out != "42\n" {
			t.Fatalf("cell after a signal = %+v, want its whole output", got)
		}
	}
}

func TestMissingProgram(t *testing.T) {
	if _, err := repl.ParseLanguage("cobol"); !errors.Is(err, guestapi.ErrInvalid) {
		t.Errorf("ParseLanguage(cobol) = %v, want %v", err, guestapi.ErrInvalid)
	}
}

// TestVariablesOfTheSandbox checks that a context takes the variables of its sandbox once, and again only what another
// sandbox, a copy of the first, has otherwise.
func TestVariablesOfTheSandbox(t *testing.T) {
	for l, read := range map[repl.Language]func(name string) string{
		repl.Python:     func(name string) string { return "import os; print(os.environ.get('" + name + "'))" },
		repl.JavaScript: func(name string) string { return "console.log(process.env." + name + ")" },
	} {
		t.Run(string(l), func(t *testing.T) {
			g := newGuest(t, l)
			c, err := repl.Create(t.Context(), g, l, "/tmp", "")
			if err != nil {
				t.Fatal(err)
			}
			var r repl.Runner
			for _, step := range []struct {
				owner, name, want string
				env               map[string]string
			}{
				{owner: "a", name: "V", want: "1", env: map[string]string{"V": "1", "W": "w"}},
				{owner: "a", name: "V", want: "1", env: map[string]string{"V": "2"}},
				{owner: "b", name: "V", want: "3", env: map[string]string{"V": "3", "W": "w"}},
				{name: "W", want: "w"},
			} {
				cell := repl.Cell{Code: read(step.name), Owner: step.owner, Defaults: step.env}
				if got := run(t, &r, g, c, cell); got.out != step.want+"\n" {
					t.Errorf("%s in a cell of %q with %v is %q, %q; want %s",
						step.name, step.owner, step.env, got.out, got.errText, step.want)
				}
			}
		})
	}
}

// TestNotebookInput checks cells as notebooks have them, where IPython is installed, and the error where it is not.
func TestNotebookInput(t *testing.T) {
	g := newGuest(t, repl.Python)
	c, err := repl.Create(t.Context(), g, repl.Python, "/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	var r repl.Runner
	find := repl.Cell{Code: "import importlib.util; print(importlib.util.find_spec('IPython') is not None)"}
	if got := run(t, &r, g, c, find); got.out == "False\n" {
		if got := run(t, &r, g, c, repl.Cell{Code: "!echo hello"}); !strings.Contains(got.errText, "need IPython") {
			t.Errorf("a command without IPython: got %+v, want an error that names it", got)
		}
		return
	}
	for code, want := range map[string]cellResult{
		"!echo hello":                        {out: "hello\n"},
		"x = !echo one; echo two\nlist(x)":   {main: "['one', 'two']"},
		"y = 3\n!echo {y} $y":                {out: "3 3\n"},
		"%%bash\necho in bash":               {out: "in bash\n"},
		"%matplotlib inline\n1 + 1":          {main: "2"},
		"%cd -q /\nimport os\nos.getcwd()":   {main: "'/'"},
		"z = 7\nget_ipython().user_ns['z']":  {main: "7"},
		"  import os\n  !echo indented\n  9": {out: "indented\n", main: "9"},
	} {
		got := run(t, &r, g, c, repl.Cell{Code: code})
		if got.out != want.out || got.main != want.main || got.errText != "" {
			t.Errorf("%q: got out %q, result %q, error %q; want %q, %q", code, got.out, got.main, got.errText,
				want.out, want.main)
		}
	}
}
