package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Field is one setting.
type Field struct {
	Path    string // as in the file: log.level
	Was     string // path in the previous release, if the setting was renamed; empty otherwise
	Kind    string // text, number, yes or no, duration
	Default string
	Doc     string
	path    string // "file", or "program", which may also be a name to search in PATH; empty if the value is no path
	value   reflect.Value
}

// Env returns the name of the setting's environment variable.
func (f Field) Env() string { return envName(f.Path) }

// Flag returns the name of the setting's flag, without dashes.
func (f Field) Flag() string { return flagName(f.Path) }

// OldFlag returns the flag's name in the previous release, or "" if the setting was not renamed.
func (f Field) OldFlag() string { return flagName(f.Was) }

func envName(path string) string {
	return "PANDASTACK_" + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

func flagName(path string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// Text returns the current value in the form that every source uses.
func (f Field) Text() string {
	if d, ok := f.value.Interface().(time.Duration); ok {
		return d.String()
	}
	return fmt.Sprint(f.value.Interface())
}

// set parses text into the setting.
func (f Field) set(text string) error {
	switch f.Kind {
	case "text":
		f.value.SetString(text)
	case "number":
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		f.value.SetInt(int64(n))
	case "yes or no":
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		f.value.SetBool(b)
	case "duration":
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 90s or 1h30m", text)
		}
		f.value.SetInt(int64(d))
	}
	return nil
}

// resolvePath returns text as a path below dir if the setting is a path and text is relative.
func (f Field) resolvePath(dir, text string) string {
	if dir == "" || text == "" || filepath.IsAbs(text) || f.path == "" ||
		f.path == "program" && !strings.Contains(text, "/") {
		return text
	}
	return filepath.Join(dir, text)
}

// Fields returns the settings of n in the order of the struct, each bound to its field of n.
func (n *Node) Fields() []Field { return fields(reflect.ValueOf(n).Elem(), "") }

func fields(v reflect.Value, prefix string) []Field {
	var all []Field
	for i := range v.NumField() {
		t, value := v.Type().Field(i), v.Field(i)
		path := prefix + t.Tag.Get("yaml")
		if t.Type.Kind() == reflect.Struct {
			all = append(all, fields(value, path+".")...)
			continue
		}
		all = append(all, Field{
			Path:    path,
			Was:     t.Tag.Get("was"),
			Kind:    kind(value),
			Default: t.Tag.Get("default"),
			Doc:     settingDocs[path],
			path:    t.Tag.Get("path"),
			value:   value,
		})
	}
	return all
}

func kind(v reflect.Value) string {
	if _, ok := v.Interface().(time.Duration); ok {
		return "duration"
	}
	switch v.Kind() {
	case reflect.Bool:
		return "yes or no"
	case reflect.Int:
		return "number"
	}
	return "text"
}
