package config

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Sources are the places that settings come from besides the defaults.
type Sources struct {
	File    string            // path of a YAML file; empty if there is none
	Env     []string          // in the form of os.Environ
	Flags   map[string]string // flags that were given, by the current or old path of the setting
	WorkDir string            // base of relative paths in the environment and in flags; empty leaves them unchanged
}

// Loaded is a configuration with the origin of each value.
type Loaded struct {
	Node
	Origin   map[string]string // by path: "default", the file's path and line, the variable, or the flag
	Warnings []string          // one for each old name that was used
}

// loader collects values and problems.
type loader struct {
	*Loaded
	workDir  string
	problems []error
}

// Load reads all sources and validates the result. The error joins all problems that were found.
func Load(src Sources) (*Loaded, error) {
	l := &loader{Loaded: &Loaded{Origin: map[string]string{}}, workDir: src.WorkDir}
	for _, f := range l.Fields() {
		l.set(f, f.Default, "default")
	}
	fromFile, err := readFile(src.File)
	l.problems = append(l.problems, err)
	env := environment(src.Env)
	for _, f := range l.Fields() {
		l.take(f, func(path string) (string, string, bool) {
			v, ok := fromFile[path]
			return v.text, v.origin, ok
		}, func(path string) string { return path })
		delete(fromFile, f.Path)
		delete(fromFile, f.Was)
		l.take(f, func(path string) (string, string, bool) {
			text, ok := env[envName(path)]
			return f.resolvePath(l.workDir, text), envName(path), ok
		}, envName)
		l.take(f, func(path string) (string, string, bool) {
			text, ok := src.Flags[path]
			return f.resolvePath(l.workDir, text), "--" + flagName(path), ok
		}, func(path string) string { return "--" + flagName(path) })
	}
	for _, path := range slices.Sorted(maps.Keys(fromFile)) {
		l.problems = append(l.problems, fmt.Errorf("%s: unknown setting (%s)", path, fromFile[path].origin))
	}
	l.problems = append(l.problems, l.Validate())
	if err := errors.Join(l.problems...); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return l.Loaded, nil
}

// take sets a field from one source, under its current name or the one of the previous release. find looks a path up in
// the source; name returns what the source calls a path.
func (l *loader) take(f Field, find func(path string) (text, origin string, ok bool), name func(path string) string) {
	text, origin, ok := find(f.Path)
	if f.Was != "" {
		old, oldOrigin, oldOK := find(f.Was)
		switch {
		case ok && oldOK:
			l.problems = append(l.problems, fmt.Errorf("%s is set under its old name %s as well (%s); remove the old "+
				"one",
				name(f.Path), name(f.Was), oldOrigin))
			return
		case oldOK:
			text, origin, ok = old, oldOrigin, true
			warning := fmt.Sprintf(
				"%s is now called %s; the old name will stop working in the next release",
				name(f.Was),
				name(f.Path),
			)
			l.Warnings = append(l.Warnings, warning)
		}
	}
	if ok {
		l.set(f, text, origin)
	}
}

// set parses the value of a field and records its origin.
func (l *loader) set(f Field, text, origin string) {
	if err := f.set(text); err != nil {
		l.problems = append(l.problems, fmt.Errorf("%s (%s): %w", f.Path, origin, err))
		return
	}
	l.Origin[f.Path] = origin
}

// environment parses the form of os.Environ.
func environment(env []string) map[string]string {
	m := map[string]string{}
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok {
			m[k] = v
		}
	}
	return m
}

// fileValue is a scalar of the configuration file; origin is the file's path and the line.
type fileValue struct{ text, origin string }

// readFile returns the scalars of a YAML file by path.
func readFile(path string) (map[string]fileValue, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	out := map[string]fileValue{}
	if len(doc.Content) == 0 {
		return out, nil
	}
	return out, flatten(doc.Content[0], path, "", out)
}

func flatten(n *yaml.Node, file, prefix string, out map[string]fileValue) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("%s line %d: write settings as name: value", file, n.Line)
	}
	var problems []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		path := prefix + key.Value
		switch value.Kind {
		case yaml.ScalarNode:
			if _, ok := out[path]; ok {
				problems = append(problems, fmt.Errorf("%s: set twice (%s line %d)", path, file, key.Line))
			}
			out[path] = fileValue{value.Value, fmt.Sprintf("%s line %d", file, key.Line)}
		case yaml.MappingNode:
			problems = append(problems, flatten(value, file, path+".", out))
		default:
			problems = append(problems, fmt.Errorf("%s: a list is not allowed here (%s line %d)", path, file, key.Line))
		}
	}
	return errors.Join(problems...)
}
