package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRepository checks this repository, so that `go test ./...` enforces the rules.
func TestRepository(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"-root", "../.."}, &out, &errs); code != 0 {
		t.Errorf("exit %d\n%s%s", code, out.String(), errs.String())
	}
}

// write creates a small repository with the given files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["go.mod"] = "module example.org/m\n"
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// promise returns a repository with package internal/a, its tests TestX and TestYes, and a line of SPECIFICATION.md.
func promise(line string) map[string]string {
	return map[string]string{
		promiseFile:            "# Promises\n" + line + "\n",
		"internal/a/a.go":      "// Package a.\npackage a\n",
		"internal/a/a_test.go": "package a\nfunc TestX() {}\nfunc TestYes() {}\n",
	}
}

// two returns the files of package a, and of package b that imports it.
func two(a, b string) map[string]string {
	return map[string]string{
		a + "/a.go": "// Package a.\npackage a\n",
		b + "/b.go": "// Package b.\npackage b\nimport _ \"example.org/m/" + a + "\"\n",
	}
}

func TestRules(t *testing.T) {
	long := strings.Repeat("\tx++\n", 110)
	tests := []struct {
		name  string
		plan  string
		files map[string]string
		want  string // one finding; empty: none
	}{
		{"clean", "layer low a:\nlayer high b: low\n", two("a", "b"), ""},
		{"import", "layer low a:\nlayer high b:\n", two("a", "b"),
			"import b: imports a, which neither its layer high nor an exception in imports.txt allows"},
		{
			"upwards",
			"layer low a: high\nlayer high b: low\n",
			two("a", "b"),
			"plan low: line 1 names layer high, which is not declared above it",
		},
		{"beside", "layer l x/*:\n", two("x/a", "x/b"), "import x/b: imports x/a, which neither its layer l"},
		{"own-room", "layer l x/*:\n", two("x/a", "x/a/b"), ""},
		{"shared", "layer l x/*:\n", two("x", "x/a"), ""},
		{"exception", "layer l x/*:\nexcept x/b: x/a\n", two("x/a", "x/b"), ""},
		{"stale-exception", "layer low a:\nlayer high b: low\nexcept b: a\n", two("a", "b"),
			"plan b: line 3 allows an import of a that does not exist or needs no exception"},
		{
			"unplanned",
			"",
			map[string]string{"a/a.go": "// Package a.\npackage a\n"},
			"plan a: is in no layer of imports.txt",
		},
		{"stale-plan", "layer low a:\n", map[string]string{}, "plan low: line 1 describes a layer without packages"},
		{"star", "layer low a:\nlayer high b: *\n", two("a", "b"), ""},
		{
			"getenv",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nimport \"os\"\nvar x = os.Getenv(\"X\")\n"},
			"call a/a.go: uses os.Getenv on line 4",
		},
		{
			"sleep-in-test",
			"layer l a:\n",
			map[string]string{
				"a/a.go":      "// Package a.\npackage a\n",
				"a/a_test.go": "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }\n",
			},
			"call a/a_test.go: uses time.Sleep on line 3",
		},
		{
			"background",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nimport c \"context\"\nvar x = c.Background()\n"},
			"call a/a.go: uses context.Background on line 4",
		},
		{
			"panic",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nfunc f() { panic(1) }\n"},
			"panic a/a.go: panics on line 3",
		},
		{
			"skip",
			"layer l a:\n",
			map[string]string{
				"a/a.go":      "// Package a.\npackage a\n",
				"a/a_test.go": "package a\nfunc f(t T) { t.Skip(\"no\") }\n",
			},
			"skip a/a_test.go: line 2 skips",
		},
		{
			"skip-probe",
			"layer l a:\n",
			map[string]string{
				"a/a.go":      "// Package a.\npackage a\n",
				"a/a_test.go": "package a\nfunc f(t T) { t.Skip(\"probe root: no\") }\n",
			},
			"",
		},
		{
			"init",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nfunc init() {}\n"},
			"init a/a.go: has an init function",
		},
		{
			"unsafe",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nimport _ \"unsafe\"\n"},
			"unsafe a/a.go: imports unsafe",
		},
		{
			"unsafe-placed",
			"layer l a:\n",
			map[string]string{"a/a_unsafe.go": "// Package a.\npackage a\nimport _ \"unsafe\"\n"},
			"",
		},
		{
			"comment",
			"layer l a:\n",
			map[string]string{"a/a.go": "package a\n"},
			"package-comment a: no file has a package comment",
		},
		{
			"long",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\nfunc f(x int) {\n" + long + "}\n"},
			"function-size a/a.go:f: 112 lines, 100 at most",
		},
		{
			"long-allowed",
			"layer l a:\n",
			map[string]string{
				"a/a.go":  "// Package a.\npackage a\nfunc f(x int) {\n" + long + "}\n",
				allowFile: "function-size a/a.go:f: a table\n",
			},
			"",
		},
		{
			"stale-allow",
			"layer l a:\n",
			map[string]string{"a/a.go": "// Package a.\npackage a\n", allowFile: "panic a/a.go: why not\n"},
			`allow tools/repocheck/allow.txt: "panic a/a.go" excuses nothing`,
		},
		{"word", "", map[string]string{"README.md": "text\nTO" + "DO later\n"}, "word README.md: line 2 holds"},
		{
			"banned-word", "layer l a:\n", map[string]string{
				"a/a.go": "// Package a.\npackage a\n\n// f is " + "to" + "ld.\nfunc f() {}\n",
			},
			`language a/a.go: line 4 uses "tol` + `d"`,
		},
		{
			"banned-word-in-a-test", "layer l a:\n", map[string]string{
				"a/a.go": "// Package a.\npackage a\n",
				"a/a_test.go": "package a\n\nfunc f(t interface{ Errorf(string, ...any) }) {\n\tt.Errorf(\"it ans" +
					"wers %d\", 1)\n}\n",
			},
			"language a/a_test.go: line 4 uses",
		},
		{
			"banned-word-in-markdown",
			"",
			map[string]string{"README.md": "as " + "who" + "ever asks\n"},
			"language README.md: line 1 uses",
		},
		{
			"long-line", "layer l a:\n", map[string]string{
				"a/a.go": "// Package a.\npackage a\n\n// " + strings.Repeat("x", 120) + "\n",
			},
			"line-length a/a.go: line 4 has 123 columns, 120 at most",
		},
		{
			"file-name", "layer l a:\n", map[string]string{
				"a/others_test.go": "package a\n", "a/a.go": "// Package a.\npackage a\n",
			},
			"file-name a/others_test.go: the name does not say what is in the file",
		},
		{
			"no-doc", "layer l a:\n", map[string]string{"a/a.go": "// Package a.\npackage a\n\nfunc F() {}\n"},
			"doc a/a.go:F: has no doc comment",
		},
		{
			"long-summary", "layer l a:\n",
			map[string]string{
				"a/a.go": "// Package a.\npackage a\n\n// F " + strings.Repeat("is ", 34) + "it.\nfunc F() {}\n",
			},
			"doc a/a.go:F: the first sentence of the doc comment has 107 characters, 100 at most",
		},
		{"promise", "layer l internal/a:\n", promise("`internal/a` TestX, TestY...; `internal` TestX"), ""},
		{
			"promise-of-no-test",
			"layer l internal/a:\n",
			promise("`internal/a` TestX, TestZ"),
			"promise SPECIFICATION.md: line 2 names TestZ, which does not exist in internal/a",
		},
		{
			"promise-of-no-package",
			"layer l internal/a:\n",
			promise("`internal/b`"),
			"promise SPECIFICATION.md: line 2 names internal/b, which has no Go files",
		},
		{
			"promise-without-package",
			"layer l internal/a:\n",
			promise("TestX"),
			"promise SPECIFICATION.md: line 2 names TestX before any package",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.files[planFile] = tt.plan
			found, _, _, err := check(write(t, tt.files))
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if len(found) != 0 {
					t.Errorf("found %v, want nothing", found)
				}
				return
			}
			if len(found) == 0 || !strings.HasPrefix(found[0].String(), tt.want) {
				t.Errorf("found %v, want %q first", found, tt.want)
			}
		})
	}
}
