package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
)

// planFile describes the layers of the repository. Each line of it is a rule, a comment or empty:
//
//	layer NAME PATTERN...: LAYER...     packages of this layer may import packages of the named layers
//	except PACKAGE: PACKAGE...          one package may import these packages as well
//
// A pattern is the directory of a package, or a directory followed by "/*" for that directory and every package below
// it. A layer can name only layers of the lines above it; "*" names all of them. Inside a layer, a package may import
// the packages of its own room, which is the directory that the "*" stands for, and the package that the pattern names
// without "/*", which holds what the rooms share.
const planFile = "imports.txt"

// layer is one "layer" line.
type layer struct {
	name     string
	patterns []string
	may      []string
	number   int
}

// exception is one "except" line.
type exception struct {
	dir    string
	may    []string
	number int
	used   map[string]bool
}

// plan is the content of planFile.
type plan struct {
	layers     []layer
	exceptions []*exception
}

// readPlan reads planFile below root. Mistakes in single lines are findings.
func readPlan(root string) (*plan, []finding, error) {
	f, err := os.Open(filepath.Join(root, planFile))
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	p := &plan{}
	var found []finding
	scanner := bufio.NewScanner(f)
	for n := 1; scanner.Scan(); n++ {
		text, _, _ := strings.Cut(scanner.Text(), "#")
		if strings.TrimSpace(text) == "" {
			continue
		}
		left, right, ok := strings.Cut(text, ":")
		words, may := strings.Fields(left), strings.Fields(right)
		switch {
		case ok && len(words) >= 3 && words[0] == "layer":
			for _, m := range may {
				if m != "*" && p.layer(m) == nil {
					text := fmt.Sprintf("line %d names layer %s, which is not declared above it", n, m)
					found = append(found, finding{"plan", words[1], text})
				}
			}
			p.layers = append(p.layers, layer{name: words[1], patterns: words[2:], may: may, number: n})
		case ok && len(words) == 2 && words[0] == "except" && len(may) > 0:
			p.exceptions = append(p.exceptions, &exception{dir: words[1], may: may, number: n, used: map[string]bool{}})
		default:
			return nil, nil, fmt.Errorf(
				`%s line %d is neither "layer NAME PATTERN...: LAYER..." nor "except PACKAGE: PACKAGE..."`,
				planFile,
				n,
			)
		}
	}
	return p, found, scanner.Err()
}

// layer returns the layer of a name, or nil.
func (p *plan) layer(name string) *layer {
	i := slices.IndexFunc(p.layers, func(l layer) bool { return l.name == name })
	if i < 0 {
		return nil
	}
	return &p.layers[i]
}

// find returns the layer and the room of a package, or nil if no pattern matches. The longest pattern wins.
func (p *plan) find(dir string) (best *layer, room string) {
	length := -1
	for i := range p.layers {
		for _, pattern := range p.layers[i].patterns {
			r, ok := matches(pattern, dir)
			if ok && len(pattern) > length {
				best, room, length = &p.layers[i], r, len(pattern)
			}
		}
	}
	return best, room
}

// matches reports whether a pattern matches a package, and returns the room that the package is in.
func matches(pattern, dir string) (room string, ok bool) {
	stem, wild := strings.CutSuffix(pattern, "/*")
	if !wild {
		return dir, pattern == dir
	}
	if dir == stem {
		return "", true
	}
	rest, ok := strings.CutPrefix(dir, stem+"/")
	first, _, _ := strings.Cut(rest, "/")
	return path.Join(stem, first), ok
}

// allows reports whether a package of the given layer and room may import dir.
func (p *plan) allows(pkg string, l *layer, room, dir string) bool {
	other, otherRoom := p.find(dir)
	if other == nil {
		return false
	}
	if other == l && (room == otherRoom || otherRoom == "") {
		return true
	}
	if slices.Contains(l.may, other.name) || slices.Contains(l.may, "*") && other.number < l.number {
		return true
	}
	for _, e := range p.exceptions {
		if e.dir == pkg && slices.Contains(e.may, dir) {
			e.used[dir] = true
			return true
		}
	}
	return false
}

// compare returns what the imports of the code, those of tests aside, break of the plan.
func (p *plan) compare(t *tree) []finding {
	var found []finding
	used := map[string]bool{}
	for _, dir := range t.dirs() {
		pkg := t.packages[dir]
		if len(pkg.files) == 0 {
			continue
		}
		l, room := p.find(dir)
		if l == nil {
			found = append(found, finding{"plan", dir, "is in no layer of " + planFile})
			continue
		}
		used[l.name] = true
		for _, imp := range pkg.imports() {
			if !p.allows(dir, l, room, imp) {
				text := fmt.Sprintf(
					"imports %s, which neither its layer %s nor an exception in %s allows",
					imp,
					l.name,
					planFile,
				)
				found = append(found, finding{"import", dir, text})
			}
		}
	}
	for _, l := range p.layers {
		if !used[l.name] {
			found = append(
				found,
				finding{"plan", l.name, fmt.Sprintf("line %d describes a layer without packages", l.number)},
			)
		}
	}
	for _, e := range p.exceptions {
		for _, m := range e.may {
			if !e.used[m] {
				text := fmt.Sprintf(
					"line %d allows an import of %s that does not exist or needs no exception",
					e.number,
					m,
				)
				found = append(found, finding{"plan", e.dir, text})
			}
		}
	}
	return found
}

// show prints the imports of the code that need an exception under the plan, in the plan's format.
func (p *plan) show(t *tree, w io.Writer) {
	bare := &plan{layers: p.layers}
	dirs := t.dirs()
	sort.Strings(dirs)
	for _, dir := range dirs {
		l, room := bare.find(dir)
		if l == nil || len(t.packages[dir].files) == 0 {
			continue
		}
		var needs []string
		for _, imp := range t.packages[dir].imports() {
			if !bare.allows(dir, l, room, imp) {
				needs = append(needs, imp)
			}
		}
		if len(needs) > 0 {
			fmt.Fprintf(w, "except %s: %s\n", dir, strings.Join(needs, " "))
		}
	}
}
