package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const allowFile = "tools/repocheck/allow.txt"

// allowed removes the findings that allow.txt excuses. Its lines have the form "rule subject: reason". A line without a
// reason, or one that excuses nothing, is a finding itself.
func allowed(root string, found []finding) ([]finding, error) {
	f, err := os.Open(filepath.Join(root, allowFile))
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	used := map[string]bool{}
	var extra []finding
	scanner := bufio.NewScanner(f)
	for n := 1; scanner.Scan(); n++ {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		key, reason, _ := strings.Cut(text, ": ")
		if strings.TrimSpace(reason) == "" {
			extra = append(extra, finding{"allow", allowFile, fmt.Sprintf("line %d gives no reason", n)})
		}
		used[key] = false
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	for _, one := range found {
		key := one.Rule + " " + one.Subject
		if _, ok := used[key]; ok {
			used[key] = true
			continue
		}
		extra = append(extra, one)
	}
	for key, hit := range used {
		if !hit {
			extra = append(extra, finding{"allow", allowFile, fmt.Sprintf("%q excuses nothing; remove the line", key)})
		}
	}
	return extra, nil
}
