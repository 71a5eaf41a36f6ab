package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/client"
	"github.com/pandastack/pandastack/internal/cli/app/sourcetree"
	"github.com/pandastack/pandastack/internal/cli/cmdutil"
)

// manifestFile says, in a directory, which function its code belongs to.
const manifestFile = "function.json"

// manifest is the content of manifestFile.
type manifest struct {
	Name       string              `json:"name"`
	Runtime    api.FunctionRuntime `json:"runtime"`
	Entrypoint string              `json:"entrypoint,omitempty"`
}

// starter are the first files of a function in a language.
type starter struct{ entrypoint, code string }

// starters returns the first files by runtime.
func starters() map[api.FunctionRuntime]starter {
	return map[api.FunctionRuntime]starter{
		api.RuntimePython: {"handler.py", `"""Invoke it with: pandastack fn invoke NAME -d '{"name": "Ada"}'"""


def handler(event, context):
    name = (event or {}).get("name", "world")
    print("greeting", name)
    return {"message": f"Hello, {name}!"}
`},
		api.RuntimeNode: {"index.js", `// Invoke it with: pandastack fn invoke NAME -d '{"name": "Ada"}'
exports.handler = async (event, context) => {
  const name = event?.name ?? "world";
  console.log("greeting", name);
  return { message: ` + "`Hello, ${name}!`" + ` };
};
`},
	}
}

func initialize(f *cmdutil.Factory) *cobra.Command {
	var runtime string
	c := &cobra.Command{
		Use:     "init [DIRECTORY]",
		Short:   "Write the first files of a function",
		Example: "  pandastack fn init hello\n  pandastack fn init resize --runtime nodejs",
		Args:    cobra.MaximumNArgs(1),
	}
	c.Flags().StringVar(&runtime, "runtime", string(api.RuntimePython), "python or nodejs")
	c.RunE = func(_ *cobra.Command, args []string) error {
		dir := "."
		if len(args) == 1 {
			dir = args[0]
		}
		first, ok := starters()[api.FunctionRuntime(runtime)]
		if !ok {
			return api.Errorf(api.Invalid, "--runtime: %q has no starter: use python or nodejs", runtime)
		}
		name, err := nameOf(dir)
		if err != nil {
			return err
		}
		text, err := json.MarshalIndent(manifest{name, api.FunctionRuntime(runtime), first.entrypoint}, "", "  ")
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a directory of the user, as mkdir makes it
			return api.Errorf(api.Invalid, "%v", err)
		}
		code := strings.ReplaceAll(first.code, "NAME", name)
		for file, content := range map[string]string{manifestFile: string(text) + "\n", first.entrypoint: code} {
			if err := writeNew(filepath.Join(dir, file), content); err != nil {
				return err
			}
		}
		f.Statusf("wrote %s: 'pandastack fn deploy %s' deploys it", filepath.Join(dir, first.entrypoint), dir)
		return nil
	}
	return c
}

// writeNew writes a file that does not exist yet.
func writeNew(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // source code
	if errors.Is(err, os.ErrExist) {
		return api.Errorf(api.Conflict, "%s exists: choose another directory, or remove it", name)
	}
	if err != nil {
		return api.Errorf(api.Invalid, "%v", err)
	}
	_, err = io.WriteString(file, text)
	return errors.Join(err, file.Close())
}

var notInNames = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// nameOf returns the name of a function that a directory or a file suggests.
func nameOf(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	base := filepath.Base(full)
	name := strings.Trim(notInNames.ReplaceAllString(base, "-"), "-._")
	if !api.ValidFunctionName(name) {
		return "", api.Errorf(api.Invalid, "%q suggests no name for a function: give one with --name", base)
	}
	return name, nil
}

// source is the code that is deployed.
type source struct {
	manifest
	files int
	bytes int64
	pack  func(w io.Writer) error
	close func() error
}

// openSource opens a directory or a file.
func openSource(path string) (s source, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return s, api.Errorf(api.Invalid, "%v: name a directory or a file with code", err)
	}
	if !info.IsDir() {
		return openFile(path, info)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return s, api.Errorf(api.Invalid, "%v", err)
	}
	s.close = root.Close
	tree, err := sourcetree.Open(root.FS(), sourcetree.Options{})
	if err == nil && tree.Files() == 0 {
		err = fmt.Errorf("%s has no files to deploy, or all are ignored", path)
	}
	if err != nil {
		return s, errors.Join(api.Errorf(api.Invalid, "%v", err), root.Close())
	}
	s.files, s.bytes, s.pack = tree.Files(), tree.Bytes, tree.Pack
	text, err := root.ReadFile(manifestFile)
	if err == nil {
		err = json.Unmarshal(text, &s.manifest)
	} else if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return s, errors.Join(api.Errorf(api.Invalid, "%s cannot be read: %v: correct it, or remove it",
			filepath.Join(path, manifestFile), err), root.Close())
	}
	if s.Runtime == "" {
		s.Runtime = guess(func(name string) bool { _, err := root.Stat(name); return err == nil })
	}
	return s, nil
}

// openFile opens a file that is a function.
func openFile(path string, info os.FileInfo) (s source, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return s, api.Errorf(api.Invalid, "%v", err)
	}
	s.files, s.bytes, s.close = 1, info.Size(), func() error { return nil }
	s.pack = func(w io.Writer) error { return packFile(w, filepath.Base(path), text) }
	s.Entrypoint = filepath.Base(path)
	switch filepath.Ext(path) {
	case ".py":
		s.Runtime = api.RuntimePython
	case ".js", ".mjs", ".cjs", ".ts", ".mts":
		s.Runtime = api.RuntimeNode
	}
	return s, nil
}

// guess returns the runtime of a directory by the files that it has.
func guess(has func(name string) bool) api.FunctionRuntime {
	for _, one := range []struct {
		name    string
		runtime api.FunctionRuntime
	}{
		{"package.json", api.RuntimeNode}, {"index.js", api.RuntimeNode}, {"index.mjs", api.RuntimeNode},
		{"index.ts", api.RuntimeNode}, {"handler.py", api.RuntimePython}, {"main.py", api.RuntimePython},
		{"app.py", api.RuntimePython}, {"requirements.txt", api.RuntimePython}, {"pyproject.toml", api.RuntimePython},
		{"bootstrap", api.RuntimeProvided},
	} {
		if has(one.name) {
			return one.runtime
		}
	}
	return ""
}

func deploy(f *cmdutil.Factory) *cobra.Command {
	var s settings
	var name string
	c := &cobra.Command{
		Use:   "deploy [DIRECTORY | FILE]",
		Short: "Deploy a directory or a file as a function, and print its URL",
		Long: "Deploy a directory or a file as a new version of a function, and print its URL when the version is\n" +
			"ready. The function is created if there is none; its name is that of --name, of \"name\" in\n" +
			"function.json, or of the directory. Dependencies of requirements.txt, pyproject.toml or package.json\n" +
			"are installed.\n\n" +
			"Files that .gitignore, .dockerignore or .pandastackignore name are not sent, nor are .git and .env\n" +
			"files.",
		Example: "  pandastack fn deploy\n  pandastack fn deploy ./resize --name resize -e BUCKET=photos\n" +
			"  pandastack fn deploy handler.py --name hello --auth public",
		Args: cobra.MaximumNArgs(1),
	}
	c.Flags().StringVarP(&name, "name", "n", "", "name or id of the function")
	c.Flags().StringVar(&s.runtime, "runtime", "", "python, nodejs or provided (default: found by the files)")
	s.register(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		path := "."
		if len(args) == 1 {
			path = args[0]
		}
		cl, err := f.Dial()
		if err != nil {
			return err
		}
		src, err := openSource(path)
		if err != nil {
			return err
		}
		return errors.Join(deploySource(f, c, cl.Functions, &s, src, name, path), src.close())
	}
	return c
}

func deploySource(
	f *cmdutil.Factory,
	c *cobra.Command,
	fns *client.Functions,
	s *settings,
	src source,
	name, path string,
) error {
	if name == "" {
		name = src.Name
	}
	if name == "" {
		var err error
		if name, err = nameOf(strings.TrimSuffix(path, filepath.Ext(path))); err != nil {
			return err
		}
	}
	if s.runtime != "" {
		src.Runtime = api.FunctionRuntime(s.runtime)
	}
	if s.entrypoint != "" {
		src.Entrypoint = s.entrypoint
	}
	ctx := c.Context()
	fn, err := ensure(ctx, f, c, fns, s, src, name)
	if err != nil {
		return err
	}
	f.Statusf("function %s: sending %d files, %s", fn.Name, src.files, cmdutil.Size(src.bytes))
	done, err := send(ctx, fns, string(fn.ID), src)
	if err != nil {
		return explainBuild(ctx, f, fns, string(fn.ID), err)
	}
	f.Statusf("version %d is ready", done.Version)
	return f.PrintLine(done, done.URL)
}

// ensure returns the function to deploy to with the settings that were given, and creates it if there is none.
func ensure(
	ctx context.Context,
	f *cmdutil.Factory,
	c *cobra.Command,
	fns *client.Functions,
	s *settings,
	src source,
	name string,
) (api.Function, error) {
	fn, err := fns.Get(ctx, name)
	if api.CodeOf(err) == api.NotFound {
		if src.Runtime == "" {
			return fn, api.Errorf(api.Invalid, "the files do not say which language they are in: give --runtime python"+
				", nodejs or provided")
		}
		req := api.CreateFunctionRequest{
			Name: name, Runtime: src.Runtime, Entrypoint: src.Entrypoint, Template: s.template, Env: s.env,
		}
		s.apply(c, &req.Settings)
		if err := req.Validate(); err != nil {
			return fn, err
		}
		if fn, err = fns.Create(ctx, req); err == nil {
			f.Statusf("created function %s", fn.Name)
		}
		return fn, err
	}
	if err != nil {
		return fn, err
	}
	if src.Runtime != "" && src.Runtime != fn.Runtime {
		return fn, api.Errorf(api.Conflict, "function %s runs %s, and this is %s: deploy it with another --name",
			fn.Name, fn.Runtime, src.Runtime)
	}
	req, ok := s.change(c, fn)
	if !ok {
		return fn, nil
	}
	if err := req.Validate(); err != nil {
		return fn, err
	}
	return fns.Update(ctx, string(fn.ID), req)
}

// send packs the files and uploads them on the way.
func send(ctx context.Context, fns *client.Functions, fn string, src source) (api.Function, error) {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := src.pack(w)
		w.CloseWithError(err)
		packed <- err
	}()
	out, err := fns.Deploy(ctx, fn, r, src.Entrypoint)
	r.CloseWithError(io.ErrClosedPipe)
	if failed := <-packed; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		err = failed // it is why the upload failed
	}
	return out, err
}

// explainBuild shows the log of a build that failed.
func explainBuild(ctx context.Context, f *cmdutil.Factory, fns *client.Functions, id string, err error) error {
	fn, failed := fns.Get(ctx, id)
	if failed != nil || fn.Status != api.FunctionFailed || fn.Latest == 0 {
		return err
	}
	if buildLog(ctx, f.Stderr, fns, id, fn.Latest) != nil {
		return err
	}
	if fn.Version > 0 && fn.Version != fn.Latest {
		f.Statusf("version %d still takes the invocations", fn.Version)
	}
	return err
}
