package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/cli/app/sourcetree"
)

// Files of a directory that is deployed.
const (
	manifestFile = "pandastack.json"
	linkFile     = sourcetree.StateDir + "/app.json"
	maxManifest  = 256 << 10 // bytes
)

// link is what is remembered of a directory that was deployed.
type link struct {
	API  string    `json:"api"` // address of the server
	App  api.AppID `json:"app"`
	Name string    `json:"name"`
}

// readJSON reads a small JSON file, which may have comments, into v. It reports whether the file exists.
func readJSON(root *os.Root, name string, v any) (bool, error) {
	file, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return false, err
	}
	if len(data) > maxManifest {
		return false, api.Errorf(api.Invalid, "%s has more than %d bytes", name, maxManifest)
	}
	if data, err = hujson.Standardize(data); err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return false, api.Errorf(api.Invalid, "%s cannot be read: %v: correct it, or remove it", name, err)
	}
	return true, nil
}

// remember writes the app of a directory, for the next deployment, into a file that git ignores.
func remember(root *os.Root, l link) error {
	if err := root.Mkdir(sourcetree.StateDir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		writeFile(root, sourcetree.StateDir+"/.gitignore", []byte("*\n")),
		writeFile(root, linkFile, append(data, '\n')),
	)
}

func writeFile(root *os.Root, name string, data []byte) error {
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, bytes.NewReader(data))
	return errors.Join(err, file.Close())
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf returns the name that an app gets from the name of a directory; "" if there is none in it.
func nameOf(dir string) string {
	name := notInNames.ReplaceAllString(strings.ToLower(filepath.Base(dir)), "-")
	name = strings.Trim(name, "-")
	if len(name) > api.MaxAppName {
		name = strings.Trim(name[:api.MaxAppName], "-")
	}
	return name
}

// target is the app that a directory is deployed to.
type target struct {
	name string // or id
	from string // what named it
	// isNew says that only the directory's own name was there to choose: an app of that name is another one's.
	isNew bool
}

// chooseTarget returns the app that a flag names, else that of the last deployment, of the manifest, or of the name of
// the directory.
func chooseTarget(root *os.Root, dir, flag, server string) (target, error) {
	var last link
	var manifest struct{ Name string }
	if _, err := readJSON(root, linkFile, &last); err != nil {
		return target{}, err
	}
	if _, err := readJSON(root, manifestFile, &manifest); err != nil {
		return target{}, err
	}
	switch {
	case flag != "":
		return target{name: flag, from: "--app"}, nil
	case last.App != "" && last.API == server:
		return target{name: string(last.App), from: linkFile}, nil
	case manifest.Name != "":
		return target{name: manifest.Name, from: manifestFile}, nil
	}
	whole, err := filepath.Abs(dir)
	if err != nil {
		return target{}, err
	}
	name := nameOf(whole)
	if !api.ValidAppName(name) {
		return target{}, api.Errorf(api.Invalid, "the name of %s makes no name of an app: choose one with --app", whole)
	}
	return target{name: name, from: "the name of the directory", isNew: true}, nil
}

// openDirectory opens the directory to deploy.
func openDirectory(dir string) (*os.Root, error) {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is a file: name the directory it is in", dir)
	}
	if err != nil {
		return nil, api.Errorf(api.Invalid, "%v", err)
	}
	return os.OpenRoot(dir)
}
