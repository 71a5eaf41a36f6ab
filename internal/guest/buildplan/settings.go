package buildplan

import (
	"bytes"
	"encoding/json"
	"path"
	"path/filepath"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/pandastack/pandastack/internal/contract/buildevent"
)

// manifest is pandastack.json of a repository. What the user set takes precedence over it.
type manifest struct {
	Type           string `json:"type"`
	Framework      string `json:"framework"`
	InstallCommand string `json:"installCommand"`
	BuildCommand   string `json:"buildCommand"`
	StartCommand   string `json:"startCommand"`
	OutputDir      string `json:"outputDir"`
	RootDir        string `json:"rootDir"`
	Port           int    `json:"port"`
}

// maxManifest bounds the configuration files of a repository.
const maxManifest = 256 << 10

// settings returns what the user set, and where that is empty what pandastack.json says.
func (r *run) settings() (buildevent.Settings, error) {
	s := r.req.Settings
	dir := filepath.Join(r.source(), filepath.Clean("/"+s.RootDirectory))
	data, err := readFile(filepath.Join(dir, "pandastack.json"), maxManifest)
	if err != nil {
		return s, err
	}
	if data == nil {
		return s, nil
	}
	var m manifest
	if data, err = hujson.Standardize(data); err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return s, invalid("", "correct it, or remove it", "pandastack.json cannot be read: %s", err)
	}
	for _, f := range []struct {
		to   *string
		from string
	}{
		{&s.Framework, m.Framework}, {&s.Framework, m.Type}, {&s.InstallCommand, m.InstallCommand},
		{&s.BuildCommand, m.BuildCommand}, {&s.StartCommand, m.StartCommand}, {&s.OutputDirectory, m.OutputDir},
		{&s.RootDirectory, m.RootDir},
	} {
		if *f.to == "" {
			*f.to = f.from
		}
	}
	if s.Port == 0 {
		s.Port = m.Port
	}
	for name, dir := range map[string]string{"rootDir": s.RootDirectory, "outputDir": s.OutputDirectory} {
		if dir != "" && !filepath.IsLocal(dir) {
			return s, invalid("", "name a directory of the repository", "pandastack.json: %s %.100q leads out of it",
				name, dir)
		}
	}
	if s.Port < 0 || s.Port > 65535 {
		return s, invalid("", "use 1 to 65535", "pandastack.json: port %d is not a port", s.Port)
	}
	return s, nil
}

// providers are railpack's names of what the API calls frameworks. Detection decides about names without one.
var providers = map[string]string{
	"nextjs": "node", "next": "node", "vite": "node", "cra": "node", "react": "node", "astro": "node", "nuxt": "node",
	"remix": "node", "sveltekit": "node", "angular": "node", "node": "node", "nodejs": "node", "express": "node",
	"bun": "node", "python": "python", "fastapi": "python", "flask": "python", "django": "python", "go": "golang",
	"golang": "golang", "rust": "rust", "ruby": "ruby", "rails": "ruby", "java": "java", "deno": "deno",
	"elixir": "elixir", "dotnet": "dotnet", "shell": "shell", "static": "staticfile",
}

// frameworkOf names what was found as the API does.
func frameworkOf(meta map[string]string, asked string) string {
	provider := meta["providers"]
	switch provider {
	case "node":
		switch name := meta["nodeRuntime"]; name {
		case "next":
			return "nextjs"
		case "", "static":
			if asked == "cra" || asked == "vite" || asked == "astro" {
				return asked
			}
			return "node"
		default:
			return name
		}
	case "python":
		if name := meta["pythonRuntime"]; name != "" {
			return name
		}
	case "golang":
		return "go"
	case "staticfile":
		return "static"
	}
	return provider
}

// config writes railpack's configuration: that of the repository, with what the settings say on top.
//
// The file is beside the source, not in it. It returns the path to it as railpack wants it, relative to dir.
func (r *run) config(dir string, s buildevent.Settings) (string, error) {
	all := map[string]any{}
	data, err := readFile(filepath.Join(dir, "railpack.json"), maxManifest)
	if err != nil {
		return "", err
	}
	if data != nil {
		if data, err = hujson.Standardize(data); err == nil {
			err = json.Unmarshal(data, &all)
		}
		if err != nil {
			return "", invalid("", "correct it, or remove it", "railpack.json cannot be read: %s", err)
		}
	}
	object := func(in map[string]any, name string) map[string]any {
		o, ok := in[name].(map[string]any)
		if !ok {
			o = map[string]any{}
			in[name] = o
		}
		return o
	}
	if provider := r.provider(dir, s.Framework); provider != "" {
		all["provider"] = provider
	}
	for step, line := range map[string]string{"install": s.InstallCommand, "build": s.BuildCommand} {
		if line != "" {
			object(object(all, "steps"), step)["commands"] = []any{
				map[string]any{"src": ".", "dest": "."}, map[string]any{"cmd": line, "customName": line},
			}
		}
	}
	if s.StartCommand != "" {
		object(all, "deploy")["startCommand"] = s.StartCommand
	}
	// railpack reads commands that are strings as they are written: no character may be escaped.
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(all); err != nil {
		return "", err
	}
	file := filepath.Join(r.Dir, "railpack.json")
	if err := writePrivate(file, out.Bytes()); err != nil {
		return "", err
	}
	return filepath.Rel(dir, file)
}

// provider returns railpack's provider for a framework that was set; "" leaves it to detection.
func (r *run) provider(dir, framework string) string {
	name := providers[strings.ToLower(framework)]
	if name == "staticfile" && exists(filepath.Join(dir, "package.json")) {
		return "node" // its output is what is static
	}
	return name
}

// environment returns the variables that railpack reads: those of the app that begin with RAILPACK_, and what the
// settings say in their words.
func (r *run) environment(s buildevent.Settings) map[string]string {
	env := map[string]string{}
	for name, value := range r.req.Variables {
		if strings.HasPrefix(name, "RAILPACK_") && name != "RAILPACK_CONFIG_FILE" {
			env[name] = value
		}
	}
	framework := strings.ToLower(s.Framework)
	if s.OutputDirectory != "" && s.StartCommand == "" && framework != "nextjs" {
		env["RAILPACK_SPA_OUTPUT_DIR"] = path.Clean(s.OutputDirectory)
		env["RAILPACK_STATIC_FILE_ROOT"] = path.Clean(s.OutputDirectory)
	}
	return env
}
