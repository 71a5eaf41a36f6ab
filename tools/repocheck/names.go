package main

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// promiseFile names the test for every promise.
const promiseFile = "SPECIFICATION.md"

var (
	packageName = regexp.MustCompile("`((?:internal|test|tools|cmd|client)(?:/[a-z0-9_]+)*)`")
	testName    = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]*(?:\.\.\.)?`)
)

// promises returns the packages and tests that promiseFile names and that do not exist. A test belongs to the package
// that its line names last before it. "TestX..." is any test whose name begins with TestX. A repository without the
// file makes no promises.
func promises(root string, t *tree) ([]finding, error) {
	data, err := os.ReadFile(filepath.Join(root, promiseFile))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []finding
	for i, line := range strings.Split(string(data), "\n") {
		bad := func(format string, args ...any) {
			found = append(
				found,
				finding{"promise", promiseFile, fmt.Sprintf("line %d ", i+1) + fmt.Sprintf(format, args...)},
			)
		}
		packages := packageName.FindAllStringSubmatchIndex(line, -1)
		for _, p := range packages {
			if dir := line[p[2]:p[3]]; len(t.below(dir)) == 0 {
				bad("names %s, which has no Go files", dir)
			}
		}
		for _, at := range testName.FindAllStringIndex(line, -1) {
			name, dir := line[at[0]:at[1]], ""
			for _, p := range packages {
				if p[1] <= at[0] {
					dir = line[p[2]:p[3]]
				}
			}
			if dir == "" {
				bad("names %s before any package", name)
			} else if !t.hasTest(dir, name) {
				bad("names %s, which does not exist in %s", name, dir)
			}
		}
	}
	return found, nil
}

// below returns the packages in a directory and below it.
func (t *tree) below(dir string) []*pkg {
	var all []*pkg
	for _, d := range t.dirs() {
		if d == dir || strings.HasPrefix(d, dir+"/") {
			all = append(all, t.packages[d])
		}
	}
	return all
}

// hasTest reports whether a package, or one below it, has a test function. "TestX..." matches any name with that
// prefix.
func (t *tree) hasTest(dir, name string) bool {
	prefix, dots := strings.CutSuffix(name, "...")
	for _, p := range t.below(path.Clean(dir)) {
		for _, f := range p.tests {
			for _, d := range f.ast.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if ok && fn.Recv == nil && (fn.Name.Name == prefix || dots && strings.HasPrefix(fn.Name.Name, prefix)) {
					return true
				}
			}
		}
	}
	return false
}
