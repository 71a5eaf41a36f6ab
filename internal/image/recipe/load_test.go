package recipe_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/pandastack/pandastack/internal/image/recipe"
)

const family = `
name: t
aliases: [other]
params: {suite: "", version: "1.0", hash: sha512-x, mirror: ""}
tools: [a]
distribution: {suite: "{{suite}}", packages: [pp, "qq"]}
parts:
  - {npm: "@s/n", version: "{{version}}", hash: "{{hash}}", to: "/opt/n/{{ version }}"}
  - {file: f.sh, to: /opt/f.sh, exec: true}
start:
  - {name: s, command: serve $X}
variants:
  v:
    params: {suite: noble}
    needs: [mirror]
    memory_mib: 1024
    distribution: {packages: [rr]}
`

func load(t *testing.T, text string, opt recipe.Options) (map[string]recipe.Recipe, error) {
	t.Helper()
	return recipe.Load(fstest.MapFS{
		"t/recipe.yaml": {
			Data: []byte(text),
		}, "t/f.sh": {Data: []byte("f")}, "t/check": {Data: []byte("c")}, "t/README.md": {Data: []byte("r")},
	}, opt)
}

func TestParametersAndVariants(t *testing.T) {
	all, err := load(
		t,
		family,
		recipe.Options{Params: map[string]string{"t.version": "2.0", "t.hash": "", "t.v.suite": "jammy"}},
	)
	if err != nil || len(all) != 2 {
		t.Fatalf("Load: got %d recipes, error %v", len(all), err)
	}
	r, v := all["t"], all["t.v"]
	if p := r.Parts[0]; p.Version != "2.0" || p.To != "/opt/n/2.0" || p.Hash != "" || r.Distribution.Suite != "" {
		t.Errorf("the recipe lacks the values of the options: %+v", r)
	}
	if s := r.Start[0]; s.Command != "serve $X" || s.User != "user" || s.Dir != "/home/user" {
		t.Errorf("got start %+v", s)
	}
	if p := v.Parts[0]; p.Version != "1.0" || v.Distribution.Suite != "jammy" || v.MemoryMiB != 1024 ||
		!slices.Equal(v.Distribution.Packages, []string{"rr"}) {
		t.Errorf("got variant %+v", v)
	}
	if !v.Hidden || len(v.Aliases) != 0 || v.Name != "t.v" || !slices.Equal(v.Missing, []string{"mirror"}) ||
		len(r.Missing) != 0 {
		t.Errorf("got variant %+v", v)
	}
	if string(r.Files["f.sh"]) != "f" || string(r.Files[recipe.CheckFile]) != "c" || len(r.Files) != 2 {
		t.Errorf("got files %v", r.Files)
	}
	if r.Digest() == v.Digest() {
		t.Error("a variant has the digest of its template")
	}
}

func TestLoadRefusesInvalidRecipes(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown parameter":  {"{{version}}", "{{vresion}}", `unknown parameter "vresion"`},
		"missing file":       {"file: f.sh", "file: g.sh", `"g.sh" is not in the recipe's directory`},
		"file elsewhere":     {"file: f.sh", "file: ../f.sh", "beside the recipe"},
		"two kinds":          {"file: f.sh", "go: a/b, file: f.sh", "says 2 of npm, pypi, go and file"},
		"no kind":            {"file: f.sh, ", "", "says 0 of"},
		"relative target":    {"to: /opt/f.sh", "to: opt", "absolute path"},
		"escaping target":    {"to: /opt/f.sh", "to: /opt/../../etc", "absolute path"},
		"option for npm":     {`"@s/n"`, `"--registry=x"`, "name of a package"},
		"wrong hash":         {"hash: sha512-x", "hash: md5-x", "sha512-"},
		"version with space": {`version: "1.0"`, `version: "1 0"`, "one version"},
		"number":             {`version: "1.0"`, `version: 1.0`, "put it into quotes"},
		"start of nothing":   {", command: serve $X", "", "command and context"},
		"start of both":      {"command: serve $X", "command: x, context: python", "command and context"},
		"unknown need":       {"needs: [mirror]", "needs: [other]", `unknown parameter "other"`},
		"unknown field":      {"    memory_mib: 1024", "    memory: 1024", "memory"},
		"variants no map":    {"variants:\n  v:", "variants:\n  - v:", "variants"},
		"variant's name":     {"  v:\n    params", "  V V:\n    params", "is no name"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(family, c.old) {
				t.Fatalf("the test's recipe does not contain %q", c.old)
			}
			_, err := load(t, strings.Replace(family, c.old, c.new, 1), recipe.Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load: got error %v, want one that contains %q", err, c.want)
			}
		})
	}
	for _, key := range []string{"t.none", "none.version", "version"} {
		if _, err := load(t, family, recipe.Options{Params: map[string]string{key: "x"}}); err == nil ||
			!strings.Contains(err.Error(), key) {
			t.Errorf("parameter %s: got error %v", key, err)
		}
	}
}

// TestBuiltinIsComplete checks that every template that comes with the program has a README and a check, pins content
// from outside its distribution, and contains no address of a registry.
func TestBuiltinIsComplete(t *testing.T) {
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"base", "code-interpreter", "agent", "browser", "postgres-16", "postgres-17", "claude-agent"}
	for _, name := range names {
		r, ok := all[name]
		if !ok {
			t.Errorf("template %s is missing", name)
			continue
		}
		if len(r.Files[recipe.CheckFile]) == 0 {
			t.Errorf("%s has no check", name)
		}
		for _, p := range r.Parts {
			if p.NPM+p.Go != "" && p.Hash == "" {
				t.Errorf("%s: %s%s has no hash", name, p.NPM, p.Go)
			}
			if pins := string(r.Files[p.PyPI]); p.PyPI != "" &&
				strings.Count(pins, "==") > strings.Count(pins, "--hash=sha256:") {
				t.Errorf("%s: %s pins packages without hashes", name, p.PyPI)
			}
		}
	}
	for name, r := range all {
		for file, data := range r.Files {
			if strings.Contains(string(data), "https://") {
				t.Errorf("%s: %s contains an address", name, file)
			}
		}
	}
}

// TestExtends merges a recipe and its files over those of another directory.
func TestExtends(t *testing.T) {
	files := fstest.MapFS{
		"t/recipe.yaml": {Data: []byte(family)}, "t/f.sh": {Data: []byte("f")}, "t/check": {Data: []byte("c")},
		"u/recipe.yaml": {Data: []byte("name: u\nextends: t\nparams: {suite: sid}\ntools: [b]\n")},
		"u/f.sh":        {Data: []byte("own")},
	}
	all, err := recipe.Load(files, recipe.Options{Params: map[string]string{"u.version": "3.0"}})
	if err != nil || len(all) != 3 {
		t.Fatalf("Load: got %d recipes, error %v", len(all), err)
	}
	u := all["u"]
	if u.Hidden || len(u.Aliases) != 0 || !slices.Equal(u.Tools, []string{"b"}) || u.Distribution.Suite != "sid" ||
		u.Parts[0].Version != "3.0" || len(u.Start) != 1 {
		t.Errorf("got %+v", u)
	}
	if string(u.Files["f.sh"]) != "own" || string(u.Files[recipe.CheckFile]) != "c" ||
		string(all["t"].Files["f.sh"]) != "f" {
		t.Errorf("got files %q", u.Files)
	}
	for text, want := range map[string]string{
		"extends: none": "none",
		"extends: ../t": "not the name of a template",
		"extends: u":    "extends another template itself",
		"extends: [t]":  "not the name of a template",
	} {
		files["u/recipe.yaml"] = &fstest.MapFile{Data: []byte("name: u\n" + text + "\n")}
		if _, err := recipe.Load(files, recipe.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(family))
	f.Add([]byte("name: t\nparams: {a: '{{a}}'}\ndescription: '{{a}}'\n"))
	f.Add([]byte("name: t\nvariants: {v: {variants: {w: {}}}}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := recipe.Load(fstest.MapFS{"t/recipe.yaml": {Data: data}}, recipe.Options{})
		if err != nil {
			return
		}
		for name, r := range all {
			if r.Name != name || r.Digest() == "" {
				t.Errorf("recipe %s: got %+v", name, r)
			}
		}
	})
}
