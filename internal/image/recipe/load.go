package recipe

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/pandastack/pandastack/templates"
	"go.yaml.in/yaml/v4"
)

// Options change the content of recipe files. The zero value changes nothing.
type Options struct {
	// Params are values for parameters, by "template.parameter"; the name of a variant counts as a template's.
	Params map[string]string
}

// recipeFile describes a template; readmeFile beside it is documentation and not part of the template.
const (
	recipeFile = "recipe.yaml"
	readmeFile = "README.md"
)

// maxFile limits one file beside a recipe, in bytes, and maxFiles their number.
const (
	maxFile  = 1 << 20
	maxFiles = 50
)

// Builtin returns the recipes that come with the program, by name.
func Builtin(opt Options) (map[string]Recipe, error) { return Load(templates.Files, opt) }

// Load reads <name>/recipe.yaml of every directory, with its other files, and validates them.
//
// It also checks that every name and alias belongs to one template. A recipe file has three keys that Recipe does not
// have. "params" maps names to values; {{name}} in any text of the file is replaced by the value. "variants" maps
// names to documents that are merged over the file: maps are joined, everything else is replaced. Variant v of
// template t is the template "t.v"; it has no aliases unless it sets its own, and is hidden unless it says otherwise.
// "extends" names another directory: the file is merged over its recipe, without variants and aliases, and the files of
// that directory are those of the template, too.
func Load(files fs.FS, opt Options) (map[string]Recipe, error) {
	paths, err := fs.Glob(files, "*/"+recipeFile)
	if err != nil {
		return nil, err
	}
	all := map[string]Recipe{}
	var problems error
	for _, p := range paths {
		list, err := templateAndVariants(files, path.Dir(p), opt)
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", p, err))
		}
		for _, r := range list {
			all[r.Name] = r
		}
	}
	if problems == nil {
		problems = errors.Join(unique(all), unused(all, opt))
	}
	if problems != nil {
		return nil, problems
	}
	return all, nil
}

// templateAndVariants returns the template of a directory and its variants.
func templateAndVariants(files fs.FS, name string, opt Options) ([]Recipe, error) {
	beside, err := readFiles(files, name)
	if err != nil {
		return nil, err
	}
	base, err := decode(beside[recipeFile])
	if err != nil {
		return nil, err
	}
	delete(beside, recipeFile)
	if base["name"] != name {
		return nil, fmt.Errorf("the recipe's name is %q; name and directory must be the same", base["name"])
	}
	if base, beside, err = extend(files, base, beside); err != nil {
		return nil, err
	}
	variants, ok := takeMap(base, "variants")
	if !ok {
		return nil, errors.New("recipe: variants: must be a map of names to documents")
	}
	documents := map[string]map[string]any{name: base}
	for v, over := range variants {
		o, ok := over.(map[string]any)
		if !ok || !nameForm.MatchString(v) {
			return nil, fmt.Errorf(
				"recipe: variants: %q is no name of lower-case letters, digits, dots and dashes with a document",
				v,
			)
		}
		d := merge(map[string]any{"hidden": true}, base)
		d["hidden"] = true
		delete(d, "aliases")
		d = merge(d, o)
		d["name"] = name + "." + v
		documents[name+"."+v] = d
	}
	var list []Recipe
	var problems error
	for _, n := range slices.Sorted(maps.Keys(documents)) {
		r, err := build(documents[n], n, opt)
		r.Files = beside
		if err = errors.Join(err, r.checkFiles()); err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", n, err))
		}
		list = append(list, r)
	}
	return list, problems
}

// extend merges a document and its files over those of the directory that it extends, if it does.
func extend(
	files fs.FS,
	document map[string]any,
	beside map[string][]byte,
) (map[string]any, map[string][]byte, error) {
	from, extends := document["extends"]
	if !extends {
		return document, beside, nil
	}
	delete(document, "extends")
	name, ok := from.(string)
	if !ok || !nameForm.MatchString(name) {
		return nil, nil, fmt.Errorf("recipe: extends: %v is not the name of a template's directory", from)
	}
	all, err := readFiles(files, name)
	if err != nil {
		return nil, nil, fmt.Errorf("recipe: extends: %w", err)
	}
	base, err := decode(all[recipeFile])
	if err != nil {
		return nil, nil, fmt.Errorf("recipe: extends: %s: %w", name, err)
	}
	if _, deep := base["extends"]; deep {
		return nil, nil, fmt.Errorf("recipe: extends: %s extends another template itself: name that one", name)
	}
	delete(all, recipeFile)
	delete(base, "variants")
	delete(base, "aliases")
	maps.Copy(all, beside)
	return merge(base, document), all, nil
}

// build makes a recipe from a document without variants.
func build(document map[string]any, name string, opt Options) (Recipe, error) {
	document = maps.Clone(document)
	params, err := parameters(document, name, opt)
	if err != nil {
		return Recipe{}, err
	}
	filled, err := substitute(document, params)
	if err != nil {
		return Recipe{}, err
	}
	data, err := yaml.Dump(filled)
	if err != nil {
		return Recipe{}, fmt.Errorf("recipe: %w", err)
	}
	r, err := Parse(data)
	r.Params = slices.Sorted(maps.Keys(params))
	for _, n := range r.Needs {
		value, ok := params[n]
		if !ok {
			err = errors.Join(err, fmt.Errorf("recipe: needs: unknown parameter %q", n))
		}
		if value == "" {
			r.Missing = append(r.Missing, n)
		}
	}
	return r, err
}

func decode(data []byte) (map[string]any, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("recipe has %d bytes, at most %d are allowed", len(data), MaxBytes)
	}
	var out map[string]any
	if err := yaml.Load(data, &out); err != nil {
		return nil, fmt.Errorf("recipe: %w", err)
	}
	return out, nil
}

// readFiles reads the files of a template's directory by name.
func readFiles(files fs.FS, dir string) (map[string][]byte, error) {
	list, err := fs.ReadDir(files, dir)
	if err != nil {
		return nil, err
	}
	if len(list) > maxFiles {
		return nil, fmt.Errorf("directory has %d files, at most %d are allowed", len(list), maxFiles)
	}
	out := map[string][]byte{}
	for _, e := range list {
		if !e.Type().IsRegular() || e.Name() == readmeFile {
			continue
		}
		data, err := fs.ReadFile(files, path.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		if len(data) > maxFile {
			return nil, fmt.Errorf("%s has %d bytes, at most %d are allowed", e.Name(), len(data), maxFile)
		}
		out[e.Name()] = data
	}
	return out, nil
}

// takeMap removes a map from a document and returns it. A missing map is empty.
func takeMap(document map[string]any, key string) (map[string]any, bool) {
	v, there := document[key]
	delete(document, key)
	m, ok := v.(map[string]any)
	return m, ok || !there || v == nil
}

// merge merges over into base: maps are joined, everything else is replaced. Neither argument is changed.
func merge(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for k, v := range over {
		b, isMap := out[k].(map[string]any)
		if o, both := v.(map[string]any); isMap && both {
			v = merge(b, o)
		}
		out[k] = v
	}
	return out
}

// parameters removes the parameters from a document and returns them with the values of the options.
func parameters(document map[string]any, name string, opt Options) (map[string]string, error) {
	params, ok := takeMap(document, "params")
	if !ok {
		return nil, errors.New("recipe: params: must be a map of names to values")
	}
	out := map[string]string{}
	for k, v := range params {
		switch v.(type) {
		case string, int, bool, nil:
		default:
			return nil, fmt.Errorf("recipe: params.%s: must be a string; put it into quotes", k)
		}
		if out[k] = ""; v != nil {
			out[k] = fmt.Sprint(v)
		}
	}
	for k, v := range opt.Params {
		param, ours := strings.CutPrefix(k, name+".")
		if _, known := out[param]; ours && known {
			out[param] = v
		}
	}
	return out, nil
}

var paramForm = regexp.MustCompile(`\{\{[^{}]*\}\}`)

// substitute replaces the parameters in every text of a document by their values.
func substitute(v any, params map[string]string) (any, error) {
	var problems error
	switch v := v.(type) {
	case string:
		out := paramForm.ReplaceAllStringFunc(v, func(ref string) string {
			name := strings.TrimSpace(ref[2 : len(ref)-2])
			value, ok := params[name]
			if !ok {
				problems = errors.Join(problems,
					fmt.Errorf("recipe: params: unknown parameter %q is used in a text", name))
			}
			return value
		})
		return out, problems
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			got, err := substitute(v[k], params)
			out[k], problems = got, errors.Join(problems, err)
		}
		return out, problems
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			got, err := substitute(e, params)
			out[i], problems = got, errors.Join(problems, err)
		}
		return out, problems
	}
	return v, nil
}

func unique(all map[string]Recipe) error {
	owner := map[string]string{}
	var problems error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, n := range append([]string{name}, all[name].Aliases...) {
			if o, taken := owner[n]; taken {
				problems = errors.Join(
					problems,
					fmt.Errorf(
						"%q names both template %s and template %s; remove one of them from aliases",
						n,
						o,
						name,
					),
				)
			}
			owner[n] = name
		}
	}
	return problems
}

// unused returns an error for parameters in the options that no template has.
func unused(all map[string]Recipe, opt Options) error {
	var problems error
	for _, key := range slices.Sorted(maps.Keys(opt.Params)) {
		at := strings.LastIndexByte(key, '.')
		if at < 0 || !slices.Contains(all[key[:max(at, 0)]].Params, key[at+1:]) {
			problems = errors.Join(
				problems,
				fmt.Errorf("template parameter %q: no template has it; write template.parameter", key),
			)
		}
	}
	return problems
}

// Resolve returns a recipe by name or alias.
func Resolve(all map[string]Recipe, name string) (Recipe, bool) {
	if r, ok := all[name]; ok {
		return r, true
	}
	for _, r := range all {
		if slices.Contains(r.Aliases, name) {
			return r, true
		}
	}
	return Recipe{}, false
}
