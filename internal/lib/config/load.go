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

// Sources are where settings come from besides the defaults.
type Sources struct {
	File  string            // path of a YAML file; empty: none
	Env   []string          // as os.Environ gives it
	Flags map[string]string // by the path of the setting; only those that were given
	Dir   string            // the working directory, below which relative paths of variables and flags lie; empty leaves them as they are
}

// Loaded is a configuration with the origin of each value, by path: "default", the file's path and line,
// the variable, or the flag.
type Loaded struct {
	Node
	Origin map[string]string
}

// Load reads all sources and validates the result. The error joins every problem that was found.
func Load(src Sources) (*Loaded, error) {
	l := &Loaded{Origin: map[string]string{}}
	byPath := map[string]Field{}
	var problems []error
	take := func(f Field, text, origin string) {
		if err := f.set(text); err != nil {
			problems = append(problems, fmt.Errorf("%s (%s): %w", f.Path, origin, err))
			return
		}
		l.Origin[f.Path] = origin
	}
	for _, f := range l.Fields() {
		byPath[f.Path] = f
		take(f, f.Default, "default")
	}
	fromFile, err := readFile(src.File)
	problems = append(problems, err)
	for _, path := range slices.Sorted(maps.Keys(fromFile)) {
		v := fromFile[path]
		f, ok := byPath[path]
		if !ok {
			problems = append(problems, fmt.Errorf("%s: there is no setting of this name (%s)", path, v.origin))
			continue
		}
		take(f, v.text, v.origin)
	}
	env := environment(src.Env)
	for _, f := range l.Fields() {
		if text, ok := env[f.Env()]; ok {
			take(f, f.below(src.Dir, text), f.Env())
		}
		if text, ok := src.Flags[f.Path]; ok {
			take(f, f.below(src.Dir, text), "--"+f.Flag())
		}
	}
	problems = append(problems, l.Validate())
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return l, nil
}

func environment(env []string) map[string]string {
	m := map[string]string{}
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok {
			m[k] = v
		}
	}
	return m
}

type fileValue struct{ text, origin string }

// readFile flattens a YAML file into paths and scalars.
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
		return fmt.Errorf("%s line %d: settings are written as name: value", file, n.Line)
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
			problems = append(problems, fmt.Errorf("%s: a list cannot stand here (%s line %d)", path, file, key.Line))
		}
	}
	return errors.Join(problems...)
}
