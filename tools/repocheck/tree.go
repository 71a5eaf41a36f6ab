package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// source is one parsed Go file. Build constraints are ignored.
type source struct {
	name  string // slash-separated path below the root
	lines int
	test  bool
	fset  *token.FileSet
	ast   *ast.File
}

// pkg is one directory of Go files.
type pkg struct {
	dir    string
	module string
	files  []source // without tests
	tests  []source
}

// tree is the repository.
type tree struct {
	module   string
	packages map[string]*pkg
	words    []finding
	language []finding
}

// skipped lists directories without code of this repository.
var skipped = []string{".git", ".cache", "bin", "node_modules", "testdata", "__pycache__"}

func load(root string) (*tree, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(mod), "\n")
	t := &tree{module: strings.TrimSpace(strings.TrimPrefix(first, "module")), packages: map[string]*pkg{}}
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if p != root && slices.Contains(skipped, d.Name()) {
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil // in a linked worktree .git is a file
		}
		if !d.Type().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return t.add(filepath.ToSlash(rel), p)
	})
	return t, err
}

// maxText is the maximum size of files that are searched for words.
const maxText = 2 << 20

func (t *tree) add(name, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(data) <= maxText && !bytes.Contains(data[:min(len(data), 8000)], []byte{0}) {
		t.words = append(t.words, wordFindings(name, data)...)
	}
	if strings.HasSuffix(name, ".md") {
		for i, text := range strings.Split(string(data), "\n") {
			t.language = append(t.language, bannedIn(name, i+1, text)...)
		}
	}
	if !strings.HasSuffix(name, ".go") {
		return nil
	}
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dir := path.Dir(name)
	if t.packages[dir] == nil {
		t.packages[dir] = &pkg{dir: dir, module: t.module}
	}
	s := source{
		name:  name,
		lines: bytes.Count(data, []byte("\n")),
		test:  strings.HasSuffix(name, "_test.go"),
		fset:  fset,
		ast:   parsed,
	}
	t.language = append(t.language, s.language(data)...)
	if s.test {
		t.packages[dir].tests = append(t.packages[dir].tests, s)
	} else {
		t.packages[dir].files = append(t.packages[dir].files, s)
	}
	return nil
}

// dirs returns the directories with Go files, sorted.
func (t *tree) dirs() []string {
	all := make([]string, 0, len(t.packages))
	for dir := range t.packages {
		all = append(all, dir)
	}
	sort.Strings(all)
	return all
}

// imports returns the packages of this module that non-test files of the package import, sorted.
func (p *pkg) imports() []string {
	set := map[string]bool{}
	for _, f := range p.files {
		for _, spec := range f.ast.Imports {
			if rest, ok := strings.CutPrefix(importPath(spec), p.module+"/"); ok {
				set[rest] = true
			}
		}
	}
	all := make([]string, 0, len(set))
	for dir := range set {
		all = append(all, dir)
	}
	sort.Strings(all)
	return all
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value
	}
	return p
}
