package build

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"github.com/pandastack/pandastack/api"
	"github.com/pandastack/pandastack/internal/image/dockerfile"
)

// contextFiles holds the open contexts of a build.
type contextFiles struct {
	main  *dockerfile.Context // the context of the Dockerfile
	files []*os.File
	seen  map[string]*dockerfile.Context
}

// get opens the context at path, each path once. If none is set, it returns a context without files.
func (c *contextFiles) get(path string, none bool) (*dockerfile.Context, error) {
	if none {
		return dockerfile.OpenTar(bytes.NewReader(make([]byte, 1024)), 1024, dockerfile.Limits{})
	}
	if known := c.seen[path]; known != nil {
		return known, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, api.Errorf(api.Gone, "the files of the build have been removed: send them again")
	}
	if err != nil {
		return nil, err
	}
	c.files = append(c.files, f)
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	out, err := dockerfile.OpenTar(f, info.Size(), dockerfile.Limits{})
	if errors.Is(err, dockerfile.ErrContext) {
		return nil, api.Wrap(api.Invalid, err, err.Error()).With("field", "context")
	}
	if err != nil {
		return nil, fmt.Errorf("open the context: %w", err)
	}
	if c.seen == nil {
		c.seen = map[string]*dockerfile.Context{}
	}
	c.seen[path] = out
	return out, nil
}

// close closes all files. It may be called on nil.
func (c *contextFiles) close() error {
	if c == nil {
		return nil
	}
	var all error
	for _, f := range c.files {
		all = errors.Join(all, f.Close())
	}
	return all
}
