// Command repocheck checks the rules of this repository: the layers in imports.txt, sizes of functions, files and
// packages, forbidden calls, imports of unsafe, package and doc comments, the language of comments, tests that
// SPECIFICATION.md names, and words that must not occur. It reads source text only and never runs or type-checks it.
//
// It prints one line per finding and exits with 1 if there are any. allow.txt beside it lists the exceptions, each with
// a reason; an exception that excuses nothing is a finding, too. `repocheck -show` prints the exceptions that the code
// needs beside the layers, in the format of imports.txt.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("repocheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	root := flags.String("root", ".", "directory that holds go.mod")
	show := flags.Bool("show", false, "print the exceptions that the imports of the code need")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	findings, tree, plan, err := check(*root)
	if err != nil {
		fmt.Fprintln(stderr, "repocheck:", err)
		return 2
	}
	if *show {
		plan.show(tree, stdout)
		return 0
	}
	for _, f := range findings {
		fmt.Fprintln(stdout, f)
	}
	if len(findings) > 0 {
		return 1
	}
	return 0
}

// finding is one broken rule. Rule and Subject are what allow.txt names.
type finding struct{ Rule, Subject, Text string }

func (f finding) String() string { return f.Rule + " " + f.Subject + ": " + f.Text }

// check reads the repository at root and returns what is wrong with it, sorted.
func check(root string) ([]finding, *tree, *plan, error) {
	t, err := load(root)
	if err != nil {
		return nil, nil, nil, err
	}
	p, found, err := readPlan(root)
	if err != nil {
		return nil, nil, nil, err
	}
	found = append(found, p.compare(t)...)
	for _, dir := range t.dirs() {
		found = append(found, t.packages[dir].findings()...)
		found = append(found, t.packages[dir].summaries()...)
	}
	found = append(found, t.words...)
	found = append(found, t.language...)
	broken, err := promises(root, t)
	if err != nil {
		return nil, nil, nil, err
	}
	found = append(found, broken...)
	found, err = allowed(root, found)
	if err != nil {
		return nil, nil, nil, err
	}
	sort.Slice(found, func(i, j int) bool { return found[i].String() < found[j].String() })
	return found, t, p, nil
}
