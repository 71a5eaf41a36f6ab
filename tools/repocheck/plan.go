package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// line is one line of imports.txt: the packages it speaks of and the ones they may import.
type line struct {
	names  []string
	may    []string
	number int
}

// plan is imports.txt. A line may name only packages of lines above it, so that it cannot describe a
// cycle. A name that ends in /* stands for every package below that directory; the import "*" stands for
// everything above the line.
type plan struct{ lines []line }

const planFile = "imports.txt"

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
		names, may, ok := strings.Cut(text, ":")
		if !ok {
			return nil, nil, fmt.Errorf("%s line %d has no colon", planFile, n)
		}
		l := line{number: n, may: strings.Fields(may)}
		for name := range strings.SplitSeq(names, ",") {
			l.names = append(l.names, strings.TrimSpace(name))
		}
		for _, m := range l.may {
			if m != "*" && !p.names(m) {
				found = append(found, finding{"plan", l.names[0], fmt.Sprintf("line %d names %s, which stands on no line above it", n, m)})
			}
		}
		p.lines = append(p.lines, l)
	}
	return p, found, scanner.Err()
}

// names tells whether some line speaks of exactly this name.
func (p *plan) names(name string) bool {
	for _, l := range p.lines {
		for _, n := range l.names {
			if n == name {
				return true
			}
		}
	}
	return false
}

// find gives the line that speaks of a package: the exact name first, else the longest pattern.
func (p *plan) find(dir string) *line {
	var best *line
	length := -1
	for i := range p.lines {
		for _, n := range p.lines[i].names {
			if n == dir {
				return &p.lines[i]
			}
			if matches(n, dir) && len(n) > length {
				best, length = &p.lines[i], len(n)
			}
		}
	}
	return best
}

func matches(pattern, dir string) bool {
	if pattern == dir {
		return true
	}
	stem, ok := strings.CutSuffix(pattern, "/*")
	return ok && strings.HasPrefix(dir, stem+"/")
}

// allows tells whether the line's packages may import dir.
func (p *plan) allows(l *line, dir string) bool {
	for _, m := range l.may {
		if matches(m, dir) {
			return true
		}
		if m == "*" {
			if other := p.find(dir); other != nil && other.number < l.number {
				return true
			}
		}
	}
	return false
}

// compare holds the code's imports, those of tests aside, against the plan.
func (p *plan) compare(t *tree) []finding {
	var found []finding
	used := map[int]bool{}
	for _, dir := range t.dirs() {
		pkg := t.packages[dir]
		if len(pkg.files) == 0 {
			continue
		}
		l := p.find(dir)
		if l == nil {
			found = append(found, finding{"plan", dir, "stands on no line of " + planFile})
			continue
		}
		used[l.number] = true
		for _, imp := range pkg.imports() {
			if !p.allows(l, imp) {
				found = append(found, finding{"import", dir, fmt.Sprintf("imports %s, which line %d of %s does not name", imp, l.number, planFile)})
			}
		}
	}
	for _, l := range p.lines {
		if !used[l.number] {
			found = append(found, finding{"plan", l.names[0], fmt.Sprintf("line %d speaks of no package that exists", l.number)})
		}
	}
	return found
}

// show prints the imports of the code, packages that import less first.
func (t *tree) show(w io.Writer) {
	depth := map[string]int{}
	var measure func(dir string) int
	measure = func(dir string) int {
		if d, ok := depth[dir]; ok {
			return d
		}
		depth[dir] = 0
		d := 0
		if pkg := t.packages[dir]; pkg != nil {
			for _, imp := range pkg.imports() {
				d = max(d, measure(imp)+1)
			}
		}
		depth[dir] = d
		return d
	}
	dirs := t.dirs()
	sort.SliceStable(dirs, func(i, j int) bool { return measure(dirs[i]) < measure(dirs[j]) })
	for _, dir := range dirs {
		if len(t.packages[dir].files) > 0 {
			fmt.Fprintln(w, strings.TrimSpace(path.Clean(dir)+": "+strings.Join(t.packages[dir].imports(), " ")))
		}
	}
}
