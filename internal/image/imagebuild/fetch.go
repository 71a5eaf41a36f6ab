package imagebuild

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// fetcher fetches parts from registries into a directory, with the machine's own programs.
type fetcher struct {
	dir  string // of fetched content, kept
	work string // directory for temporary files
	log  command.Log
	// limit is how long fetching one part may take.
	limit time.Duration
}

// fetchLimit is the limit of parts, many of which have some hundred MiB.
const fetchLimit = 20 * time.Minute

// remedies describe the source of each kind of part.
var remedies = map[string]string{
	"npm":    "it comes from the registry that npm names here: npm config get registry",
	"go":     "it comes from where go looks here: go env GOPROXY",
	"wheels": "they come from the index that pip names here: pip3 config list",
}

// fetch runs the function that fetches a part.
func (f fetcher) fetch(ctx context.Context, kind, key string, do func(ctx context.Context) error) error {
	f.log.Printf("fetch %s %s", kind, key)
	if err := withTimeout(ctx, f.limit, "it did not come", do); err != nil {
		return fmt.Errorf("fetch %s %s: %w; %s", kind, key, err, remedies[kind])
	}
	return nil
}

// requireProgram returns an error with a remedy if a program is missing.
func requireProgram(program, remedy string) error {
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Errorf("%w: %s", err, remedy)
	}
	return nil
}

// path returns the path of the content that key identifies.
func (f fetcher) path(kind, key string) string {
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(f.dir, kind+"-"+hex.EncodeToString(sum[:12]))
}

// cached returns the path of the content that key identifies. It fetches the content if it is missing, and verifies it
// in either case: content that fails verification is removed.
func (f fetcher) cached(
	ctx context.Context,
	kind, key string,
	fetch func(ctx context.Context, to string) error,
	verify func(path string) error,
) (string, error) {
	path := f.path(kind, key)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if err := f.fetch(ctx, kind, key, func(ctx context.Context) error { return fetch(ctx, path) }); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	if err := verify(path); err != nil {
		return "", errors.Join(fmt.Errorf("%s %s: %w", kind, key, err), os.Remove(path))
	}
	return path, nil
}

// scratch makes an empty directory and calls do with the options of a program that works in it. The program's
// temporary files are in it too, since a killed program removes none.
func (f fetcher) scratch(do func(opt command.Options) error) (err error) {
	dir, err := os.MkdirTemp(f.work, "fetch-")
	if err != nil {
		return err
	}
	// Go makes unpacked files read-only, and directories too; root removes them all the same.
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return do(command.Options{Dir: dir, Log: f.log, Env: []string{"TMPDIR=" + dir}})
}

// npm fetches the archive of a package.
func (f fetcher) npm(ctx context.Context, p recipe.Part) (string, error) {
	key := p.NPM + "@" + p.Version
	return f.cached(ctx, "npm", key, func(ctx context.Context, to string) error {
		if err := requireProgram("npm", "install npm, which knows where packages come from here"); err != nil {
			return err
		}
		return f.scratch(func(opt command.Options) error {
			// Without a package of its own around it and without scripts: it only fetches.
			out, err := command.Output(
				ctx,
				opt,
				"npm",
				"pack",
				"--json",
				"--loglevel=silent",
				"--ignore-scripts",
				"--pack-destination",
				opt.Dir,
				key,
			)
			if err != nil {
				return errors.Join(npmError(out), err)
			}
			found, err := filepath.Glob(filepath.Join(opt.Dir, "*.tgz"))
			if err != nil || len(found) != 1 {
				return fmt.Errorf("npm left %d archives, want one: %w", len(found), err)
			}
			return os.Rename(found[0], to)
		})
	}, func(path string) error { return verifyIntegrity(path, p.Hash) })
}

// npmError returns the error that npm reports in its output, nil if there is none.
func npmError(out string) error {
	var told struct {
		Error struct{ Summary string }
	}
	if json.Unmarshal([]byte(out), &told) != nil || told.Error.Summary == "" {
		return nil
	}
	return fmt.Errorf("%.1000s", told.Error.Summary)
}

// module fetches the archive of a Go module.
func (f fetcher) module(ctx context.Context, p recipe.Part) (string, error) {
	key := p.Go + "@" + p.Version
	return f.cached(ctx, "go", key, func(ctx context.Context, to string) error {
		if err := requireProgram("go", "install Go, which knows where modules come from here"); err != nil {
			return err
		}
		return f.scratch(func(opt command.Options) error {
			opt.Env = append(
				opt.Env,
				"GOMODCACHE="+filepath.Join(opt.Dir, "mod"),
				"GOFLAGS=-modcacherw",
				"GOTOOLCHAIN=local",
				"GOWORK=off",
			)
			out, err := command.Output(ctx, opt, "go", "mod", "download", "-json", key)
			var got struct{ Zip, Error string }
			if jsonErr := json.Unmarshal([]byte(out), &got); err == nil && jsonErr != nil {
				err = jsonErr
			}
			if got.Error != "" {
				return errors.New(got.Error)
			}
			if err != nil {
				return err
			}
			return os.Rename(got.Zip, to)
		})
	}, func(path string) error { return verifySum(path, p.Hash) })
}

// platforms are the names of this processor in wheels, for C libraries that every supported distribution has.
var platforms = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// wheels fetches the wheels that a file pins, for the guest's version of Python, and returns their directory, which
// all recipes share. pip checks the hash of every wheel, including cached ones.
func (f fetcher) wheels(ctx context.Context, requirements []byte, python, arch string) (string, error) {
	if err := requireProgram(
		"pip3", "install pip for Python 3, which knows where packages come from here",
	); err != nil {
		return "", err
	}
	dir := f.path("wheels", python+" "+arch)
	args := []string{
		"download",
		"--progress-bar=off",
		"--disable-pip-version-check",
		"--retries=2",
		"--no-deps",
		"--require-hashes",
		"--only-binary=:all:",
		"--implementation",
		"cp",
		"--python-version",
		python,
		"--dest",
		dir,
	}
	for _, glibc := range []string{"2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34", "2_35"} {
		args = append(args, "--platform", "manylinux_"+glibc+"_"+platforms[arch])
	}
	args = append(args, "--platform", "manylinux2014_"+platforms[arch], "--platform", "manylinux1_"+platforms[arch])
	err := f.scratch(func(opt command.Options) error {
		list := filepath.Join(opt.Dir, "requirements.txt")
		for _, some := range batches(string(requirements)) {
			if err := os.WriteFile(list, []byte(some), 0o644); err != nil {
				return err
			}
			err := f.fetch(ctx, "wheels", "for Python "+python, func(ctx context.Context) error {
				return command.Run(ctx, opt, "pip3", append(args, "-r", list)...)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		_ = os.Remove(dir) // wheels that arrived are kept; an empty directory is removed
	}
	return dir, err
}

// batch is how many wheels are fetched at once: pip keeps none of them before it has all.
const batch = 8

// batches splits a file of pins into files with few. A file that contains more than pins is not split.
func batches(requirements string) []string {
	var all []string
	begun, pins := false, 0
	for line := range strings.Lines(requirements) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || text[0] == '#':
			continue
		case !begun && text[0] == '-':
			return []string{requirements}
		case !begun && pins%batch == 0:
			all = append(all, "")
		}
		if !begun {
			pins++
		}
		all[len(all)-1] += text + "\n"
		begun = strings.HasSuffix(text, "\\") // the pin continues on the next line
	}
	return all
}

// pythonOf returns the version of Python 3 in a root file system, as "3.11".
func pythonOf(root string) (string, error) {
	target, err := os.Readlink(filepath.Join(root, "usr/bin/python3"))
	if err != nil {
		return "", fmt.Errorf(
			"the root file system has no Python 3, which its wheels are for; add the package python3: %w",
			err,
		)
	}
	version, ok := strings.CutPrefix(filepath.Base(target), "python")
	if !ok || version == "" {
		return "", fmt.Errorf("the root file system's python3 is %q, which does not contain its version", target)
	}
	return version, nil
}
