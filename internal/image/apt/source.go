// Package apt uses the machine's own package manager to find, fetch and install packages.
//
// It owns the reading of apt's configuration and the calls of its programs. It contains no package name and no mirror
// address: both come from the caller and from the machine. Reading functions are safe for concurrent use; installing
// waits for the package manager's own lock.
package apt

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Source is one enabled source of binary packages, as sources.list(5) describes it.
type Source struct {
	URI        string
	Suite      string
	Components []string
	SignedBy   string // path of a keyring; empty: apt's own
	File       string // the file that contains it
}

// Sources returns the enabled binary sources of the machine whose root directory is root ("/").
func Sources(root string) ([]Source, error) {
	dir := filepath.Join(root, "etc/apt")
	files, err := filepath.Glob(filepath.Join(dir, "sources.list.d", "*"))
	if err != nil {
		return nil, err
	}
	var all []Source
	for _, path := range append([]string{filepath.Join(dir, "sources.list")}, files...) {
		parse := parseList
		switch {
		case strings.HasSuffix(path, ".sources"):
			parse = parseDeb822
		case !strings.HasSuffix(path, ".list"):
			continue
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("package sources: %w", err)
		}
		list, err := parse(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("package sources: %s: %w", path, err)
		}
		for i := range list {
			list[i].File = path
		}
		all = append(all, list...)
	}
	return all, nil
}

// parseList parses the one-line format: deb [option=value ...] uri suite component ...
func parseList(r io.Reader) ([]Source, error) {
	var list []Source
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		line = strings.TrimSpace(line)
		rest, ok := strings.CutPrefix(line, "deb")
		if !ok || rest == "" || !strings.ContainsAny(rest[:1], " \t[") {
			continue
		}
		var s Source
		if options, after, ok := strings.Cut(rest, "]"); ok && strings.HasPrefix(strings.TrimSpace(options), "[") {
			for _, o := range strings.Fields(strings.TrimPrefix(strings.TrimSpace(options), "[")) {
				if path, ok := strings.CutPrefix(o, "signed-by="); ok {
					s.SignedBy = path
				}
			}
			rest = after
		}
		fields := strings.Fields(rest)
		if len(fields) < 2 {
			return nil, fmt.Errorf("line %q is not a source", line)
		}
		s.URI, s.Suite, s.Components = fields[0], fields[1], fields[2:]
		list = append(list, s)
	}
	return list, lines.Err()
}

// parseDeb822 parses the format of paragraphs of "Field: value" with continuation lines.
func parseDeb822(r io.Reader) ([]Source, error) {
	var list []Source
	fields := map[string]string{}
	last := ""
	end := func() {
		list = append(list, paragraph(fields)...)
		fields, last = map[string]string{}, ""
	}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "#"):
		case strings.TrimSpace(line) == "":
			end()
		case line[0] == ' ' || line[0] == '\t':
			fields[last] += "\n" + strings.TrimSpace(line)
		default:
			name, value, ok := strings.Cut(line, ":")
			if !ok {
				return nil, fmt.Errorf("line %q is not a field", line)
			}
			last = strings.ToLower(strings.TrimSpace(name))
			fields[last] = strings.TrimSpace(value)
		}
	}
	end()
	return list, lines.Err()
}

func paragraph(fields map[string]string) []Source {
	if !slices.Contains(strings.Fields(fields["types"]), "deb") || strings.EqualFold(fields["enabled"], "no") {
		return nil
	}
	signed := fields["signed-by"]
	if !strings.HasPrefix(signed, "/") {
		signed = "" // a key in the file itself, which only apt can use
	}
	var list []Source
	for _, uri := range strings.Fields(fields["uris"]) {
		for _, suite := range strings.Fields(fields["suites"]) {
			list = append(
				list,
				Source{URI: uri, Suite: suite, Components: strings.Fields(fields["components"]), SignedBy: signed},
			)
		}
	}
	return list
}

// Distribution is the content of /etc/os-release.
type Distribution struct {
	ID       string // "debian"
	Codename string // "bookworm"
	Pretty   string // "Debian GNU/Linux 12 (bookworm)"
}

// ReadDistribution reads os-release of the machine whose root directory is root ("/").
func ReadDistribution(root string) (Distribution, error) {
	data, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return Distribution{}, fmt.Errorf("distribution: %w", err)
	}
	values := map[string]string{}
	for _, line := range strings.Split(string(data), "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[name] = strings.Trim(value, `"'`)
		}
	}
	return Distribution{ID: values["ID"], Codename: values["VERSION_CODENAME"], Pretty: values["PRETTY_NAME"]}, nil
}

// Debian reports whether the machine's distribution is Debian.
func (d Distribution) Debian() bool { return d.ID == "debian" }
