// Package knownhosts checks the form of ssh's list of the keys of servers.
package knownhosts

import (
	"regexp"
	"strings"
)

// Bounds of a list.
const (
	MaxBytes = 16 << 10
	MaxLines = 32
)

// line is the names of a server, the type of its key and the key. Markers such as @cert-authority are no part of it.
var line = regexp.MustCompile(`^[A-Za-z0-9.,:*?!|=+/\[\]_-]{1,500} [a-z0-9@.-]{1,64} ` +
	`[A-Za-z0-9+/]{16,}={0,2}( [ -~]*)?$`)

// Valid reports whether text is a list, as ssh-keyscan prints it. An empty one is.
func Valid(text string) bool {
	if len(text) > MaxBytes {
		return false
	}
	n := 0
	for one := range strings.Lines(text) {
		one = strings.TrimRight(one, "\r\n")
		if one == "" || strings.HasPrefix(one, "#") {
			continue
		}
		if n++; n > MaxLines || !line.MatchString(one) {
			return false
		}
	}
	return true
}

// Clean returns the lines with keys.
func Clean(text string) string {
	var keep strings.Builder
	for one := range strings.Lines(text) {
		if one = strings.TrimSpace(one); one != "" && !strings.HasPrefix(one, "#") {
			keep.WriteString(one + "\n")
		}
	}
	return keep.String()
}
