package imagebuild

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"

	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// wheelhouse is a directory of wheels and the file that pins them, to be installed into a root.
type wheelhouse struct {
	dir  string
	list string // path of the pins
	to   string // directory in the root; empty: the root's own Python
}

// addParts adds a recipe's parts to a root file system. It only fetches wheels, which are installed by the root's own
// Python.
func addParts(
	ctx context.Context,
	r recipe.Recipe,
	dir, work, keep string,
	log command.Log,
) (houses []wheelhouse, err error) {
	if err := os.MkdirAll(keep, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	f := fetcher{dir: keep, work: work, log: log, limit: fetchLimit}
	for i, p := range r.Parts {
		if p.PyPI != "" {
			h, err := f.fetchWheels(ctx, r, p, dir)
			if err != nil {
				return nil, err
			}
			houses = append(houses, h)
			continue
		}
		if err := f.part(ctx, r, p, root); err != nil {
			return nil, fmt.Errorf("parts[%d]: %w", i, err)
		}
	}
	if check, ok := r.Files[recipe.CheckFile]; ok {
		err = newTree(
			ctx,
			root,
			path.Dir(recipe.CheckPath),
		).file(path.Base(recipe.CheckPath), true, bytes.NewReader(check))
	}
	return houses, err
}

func (f fetcher) part(ctx context.Context, r recipe.Recipe, p recipe.Part, root *os.Root) error {
	switch {
	case p.NPM != "":
		archive, err := f.npm(ctx, p)
		if err != nil {
			return err
		}
		return newTree(ctx, root, p.To).tgz(archive)
	case p.Go != "":
		archive, err := f.module(ctx, p)
		if err != nil {
			return err
		}
		return newTree(ctx, root, p.To).zip(archive, p.Go+"@"+p.Version)
	}
	return newTree(ctx, root, path.Dir(p.To)).file(path.Base(p.To), p.Exec, bytes.NewReader(r.Files[p.File]))
}

func (f fetcher) fetchWheels(ctx context.Context, r recipe.Recipe, p recipe.Part, root string) (wheelhouse, error) {
	python, err := pythonOf(root)
	if err != nil {
		return wheelhouse{}, err
	}
	pins := r.Files[p.PyPI]
	list := filepath.Join(f.work, p.PyPI)
	if err := os.WriteFile(list, pins, 0o644); err != nil {
		return wheelhouse{}, err
	}
	dir, err := f.wheels(ctx, pins, python, runtime.GOARCH)
	return wheelhouse{dir: dir, list: list, to: p.To}, err
}
