//go:build e2e

// Package firsthour runs what a stranger types in the first hour, in a terminal of 80 columns: the commands of
// README.md and docs/getting-started.md, from their text, and the mistakes that people make.
//
// Before a block of commands that the test cannot run, such as the installation of packages, the page says so in a
// comment, which readers do not see:
//
//	<!-- not run by test/firsthour: it installs packages -->
//
// In the other blocks everything is run as it is written, in one shell for each page. Where the page has a placeholder,
// such as <child> or <snp...>, the test puts the last id of that kind that was printed.
package firsthour

import (
	"fmt"
	"regexp"
	"strings"
)

// command is one command of a page.
type command struct {
	line int // of the page
	text string
}

const marker = "<!-- not run by test/firsthour: "

// commands returns the commands in the blocks of a page, without the blocks that are marked.
func commands(page string) ([]command, error) {
	var all []command
	block, marked := false, false
	for i, line := range strings.Split(page, "\n") {
		switch text := strings.TrimSpace(line); {
		case strings.HasPrefix(text, marker):
			if !strings.HasSuffix(text, " -->") || len(text) <= len(marker)+len(" -->") {
				return nil, fmt.Errorf("line %d: the comment has to give a reason and end the line", i+1)
			}
			marked = true
		case block && text == "```":
			block, marked = false, false
		case text == "```sh":
			block = true
		case block && !marked && text != "" && !strings.HasPrefix(text, "#"):
			if len(all) > 0 && strings.HasSuffix(all[len(all)-1].text, "\\") {
				all[len(all)-1].text += "\n" + line
				continue
			}
			all = append(all, command{i + 1, line})
		case !block && marked && text != "":
			return nil, fmt.Errorf("line %d: no block of commands follows the comment", i+1)
		}
	}
	return all, nil
}

// placeholder is where a user has to put an id: <child>, or the prefix of a kind of ids.
var placeholder = regexp.MustCompile(`<(child|[a-z]{3}\.\.\.)>`)

// fill replaces the placeholders of a command by what was printed before.
func fill(text, printed string) (string, error) {
	var missing error
	filled := placeholder.ReplaceAllStringFunc(text, func(one string) string {
		prefix := strings.TrimSuffix(strings.Trim(one, "<>"), "...")
		if prefix == "child" {
			prefix = "sbx"
		}
		found := regexp.MustCompile(prefix+`[a-z2-7]{20}\b`).FindAllString(printed, -1)
		if len(found) == 0 {
			missing = fmt.Errorf("nothing that was printed can be %s", one)
			return one
		}
		return found[len(found)-1]
	})
	return filled, missing
}
