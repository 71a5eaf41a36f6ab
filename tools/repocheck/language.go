package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 120 // of a line of Go, with tabs of tabColumns
	tabColumns = 4
	maxSummary = 100 // characters of the first sentence of a doc comment
)

// bannedWords are words of private vocabulary, which comments, documents and messages of tests do not use.
var bannedWords = []struct {
	re      *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\banswers\b`), `write "returns", "replies" or "responses"`},
	{regexp.MustCompile(`(?i)\btold\b`), "name the call, event or field that carries the information"},
	{regexp.MustCompile(`(?i)\bwhoever\b`), `write "the caller", "the user" or another noun`},
	{regexp.MustCompile(`(?i)\bnobody\b`), `write "no caller", "no process" or another noun`},
	{regexp.MustCompile(`(?i)\btells whether\b`), `write "reports whether"`},
	{regexp.MustCompile(`(?i)\banew\b`), `write "again" or "from scratch"`},
	{regexp.MustCompile(`(?i)\blies over\b`), `write "overlays"`},
	{regexp.MustCompile(`(?i)\bwho (kills|lacks|waits|calls|asks)\b`), "give the clause a noun"},
}

// bannedNames are base names of Go files that do not say what is in them.
var bannedNames = []string{
	"common", "helper", "helpers", "life", "misc", "more", "move", "moves", "other", "others", "rest", "still", "talk",
	"thrift", "util", "utils",
}

// language returns what the text of a Go file breaks: banned words in comments and in what tests report, long lines,
// banned names.
func (s source) language(data []byte) []finding {
	if ast.IsGenerated(s.ast) {
		return nil
	}
	var found []finding
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			first := s.line(c.Pos())
			for i, text := range strings.Split(c.Text, "\n") {
				found = append(found, bannedIn(s.name, first+i, text)...)
			}
		}
	}
	if strings.HasSuffix(s.name, "_test.go") {
		found = append(found, s.messages()...)
	}
	for i, text := range bytes.Split(data, []byte("\n")) {
		if n := columns(text); n > maxColumns {
			found = append(
				found,
				finding{"line-length", s.name, fmt.Sprintf("line %d has %d columns, %d at most", i+1, n, maxColumns)},
			)
		}
	}
	base, _, _ := strings.Cut(strings.TrimSuffix(path.Base(s.name), ".go"), "_")
	if slices.Contains(bannedNames, base) {
		found = append(found, finding{"file-name", s.name, "the name does not say what is in the file"})
	}
	return found
}

// reporters are the methods of testing.TB with a text for the reader.
var reporters = []string{"Error", "Errorf", "Fatal", "Fatalf", "Log", "Logf", "Skip", "Skipf"}

// messages returns the banned words of what a test reports.
func (s source) messages() []finding {
	var found []finding
	ast.Inspect(s.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); !ok || !slices.Contains(reporters, f.Sel.Name) {
			return true
		}
		for _, arg := range call.Args {
			ast.Inspect(arg, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					found = append(found, bannedIn(s.name, s.line(text.Pos()), text.Value)...)
				}
				return true
			})
		}
		return false
	})
	return found
}

// bannedIn returns the banned words of one line.
func bannedIn(name string, line int, text string) []finding {
	var found []finding
	for _, w := range bannedWords {
		if word := w.re.FindString(text); word != "" {
			found = append(found, finding{"language", name, fmt.Sprintf("line %d uses %q; %s", line, word, w.instead)})
		}
	}
	return found
}

// columns returns the width of a line.
func columns(line []byte) int {
	tabs := bytes.Count(line, []byte("\t"))
	return utf8.RuneCount(line) + tabs*(tabColumns-1)
}

// summaries returns the exported identifiers of a package whose doc comment is missing or does not begin with a
// sentence of at most maxSummary characters. A comment on a group of constants, variables or types serves the whole
// group.
func (p *pkg) summaries() []finding {
	var found []finding
	for _, f := range p.files {
		if ast.IsGenerated(f.ast) || f.ast.Name.Name == "main" {
			continue
		}
		check := func(name *ast.Ident, docs ...*ast.CommentGroup) {
			if !name.IsExported() {
				return
			}
			text := ""
			for _, d := range docs {
				if text == "" {
					text = d.Text()
				}
			}
			subject := f.name + ":" + name.Name
			switch n := utf8.RuneCountInString(firstSentence(text)); {
			case n == 0:
				found = append(found, finding{"doc", subject, "has no doc comment"})
			case n > maxSummary:
				found = append(found, finding{"doc", subject, fmt.Sprintf("the first sentence of the doc comment has "+
					"%d characters, %d at most",
					n, maxSummary)})
			}
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ast.IsExported(receiver(d)) {
					check(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						check(spec.Name, spec.Doc, spec.Comment, d.Doc)
					case *ast.ValueSpec:
						check(spec.Names[0], spec.Doc, spec.Comment, d.Doc)
					}
				}
			}
		}
	}
	return found
}

// sentenceEnd matches the end of a sentence or paragraph.
var sentenceEnd = regexp.MustCompile(`[.:](\s|$)|\n\n`)

// firstSentence returns the first sentence of a doc comment on one line.
func firstSentence(text string) string {
	if end := sentenceEnd.FindStringIndex(text); end != nil {
		text = text[:end[0]+1]
	}
	return strings.Join(strings.Fields(text), " ")
}

// receiver returns the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) string {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
