package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"strings"
)

// Limits of sizes, in lines. Test files have only a limit of their own.
const (
	maxPackage  = 4000
	maxFile     = 600
	maxTestFile = 2000
	maxFunction = 100
	maxImports  = 12
)

// ban is a forbidden call.
type ban struct {
	pkg, name string
	tests     bool     // applies to tests as well
	except    []string // directories, including subdirectories, where the call is allowed
	instead   string
}

var bans = []ban{
	{
		pkg:     "os",
		name:    "Getenv",
		except:  []string{"internal/lib/config", "test/nodelab"},
		instead: "read the environment in internal/lib/config",
	},
	{
		pkg:     "os",
		name:    "LookupEnv",
		except:  []string{"internal/lib/config"},
		instead: "read the environment in internal/lib/config",
	},
	{pkg: "time", name: "Sleep", tests: true, instead: "wait for a condition, a channel or a timer"},
	{
		pkg:     "context",
		name:    "Background",
		except:  []string{"cmd", "internal/node", "tools"},
		instead: "take the context from the caller",
	},
	{pkg: "context", name: "TO" + "DO", tests: true, instead: "take the context from the caller"},
}

// assembly packages are exempt from the limit on imports.
var assembly = []string{"cmd", "internal/node", "internal/cli", "internal/integrationtest", "test"}

func under(dir string, roots []string) bool {
	for _, r := range roots {
		if dir == r || strings.HasPrefix(dir, r+"/") {
			return true
		}
	}
	return false
}

func (p *pkg) findings() []finding {
	var found []finding
	total, comment := 0, false
	for _, f := range p.files {
		if ast.IsGenerated(f.ast) {
			comment = true // generated code is not subject to the rules
			continue
		}
		total += f.lines
		comment = comment || f.ast.Doc != nil
		found = append(found, f.sizes(maxFile)...)
		found = append(found, f.functions()...)
		found = append(found, f.calls(p.dir)...)
	}
	for _, f := range p.tests {
		found = append(found, f.sizes(maxTestFile)...)
		found = append(found, f.calls(p.dir)...)
	}
	if len(p.files) == 0 {
		return found
	}
	if total > maxPackage {
		found = append(found, finding{"package-size", p.dir, fmt.Sprintf("%d lines, %d at most", total, maxPackage)})
	}
	if !comment {
		found = append(found, finding{"package-comment", p.dir, "no file has a package comment"})
	}
	if n := len(p.imports()); n > maxImports && !under(p.dir, assembly) {
		found = append(
			found,
			finding{"fan-out", p.dir, fmt.Sprintf("imports %d packages of this module, %d at most", n, maxImports)},
		)
	}
	return found
}

func (s source) sizes(limit int) []finding {
	if s.lines <= limit || ast.IsGenerated(s.ast) {
		return nil
	}
	return []finding{{"file-size", s.name, fmt.Sprintf("%d lines, %d at most", s.lines, limit)}}
}

func (s source) functions() []finding {
	var found []finding
	for _, d := range s.ast.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if f.Name.Name == "init" && f.Recv == nil {
			found = append(found, finding{"init", s.name, "has an init function; call it from the assembly"})
		}
		if n := s.line(f.End()) - s.line(f.Pos()) + 1; n > maxFunction {
			found = append(
				found,
				finding{
					"function-size",
					s.name + ":" + f.Name.Name,
					fmt.Sprintf("%d lines, %d at most", n, maxFunction),
				},
			)
		}
	}
	return found
}

func (s source) line(pos token.Pos) int { return s.fset.Position(pos).Line }

// calls returns forbidden calls and misplaced imports of unsafe.
func (s source) calls(dir string) []finding {
	var found []finding
	local := map[string]string{} // local name of an import -> its path
	for _, spec := range s.ast.Imports {
		p := importPath(spec)
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		local[name] = p
		if p == "unsafe" && !strings.HasSuffix(s.name, "_unsafe.go") {
			found = append(found, finding{"unsafe", s.name, "imports unsafe; only files named *_unsafe.go may"})
		}
	}
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				found = append(found, s.banned(dir, local[x.Name], n)...)
			}
		case *ast.CallExpr:
			if !namesProbe(n) {
				found = append(found, finding{"skip", s.name, fmt.Sprintf("line %d skips a test without naming a "+
					"probe; begin the text with \"probe NAME: \"", s.line(n.Pos()))})
			}
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "panic" && !s.test {
				text := fmt.Sprintf("panics on line %d; return an error", s.line(n.Pos()))
				found = append(found, finding{"panic", s.name, text})
			}
		}
		return true
	})
	return found
}

// namesProbe reports whether a call that skips a test names the missing probe first. It returns true for other calls.
func namesProbe(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Skip" && f.Sel.Name != "Skipf" && f.Sel.Name != "SkipNow" {
		return true
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "t" && x.Name != "b" && x.Name != "f" {
		return true
	}
	if len(call.Args) == 0 {
		return false
	}
	text, ok := call.Args[0].(*ast.BasicLit)
	return ok && strings.HasPrefix(strings.Trim(text.Value, "\"`"), "probe ")
}

func (s source) banned(dir, imported string, sel *ast.SelectorExpr) []finding {
	for _, b := range bans {
		if b.pkg != imported || b.name != sel.Sel.Name || under(dir, b.except) || s.test && !b.tests {
			continue
		}
		return []finding{
			{"call", s.name, fmt.Sprintf("uses %s.%s on line %d; %s", b.pkg, b.name, s.line(sel.Pos()), b.instead)},
		}
	}
	return nil
}

// words that must not occur in any file. They are concatenated so that this file does not contain them.
var words = []struct{ word, why string }{
	{"TO" + "DO", "open tasks belong in the tracker"},
	{"FIX" + "ME", "open tasks belong in the tracker"},
	{"/var/" + "tmp/", "a path of one machine"},
	{"/wo" + "rk/", "a path of one machine"},
}

func wordFindings(name string, data []byte) []finding {
	if name == "go.sum" {
		return nil
	}
	var found []finding
	for _, w := range words {
		if i := bytes.Index(data, []byte(w.word)); i >= 0 {
			line := bytes.Count(data[:i], []byte("\n")) + 1
			found = append(found, finding{"word", name, fmt.Sprintf("line %d holds %q: %s", line, w.word, w.why)})
		}
	}
	return found
}
