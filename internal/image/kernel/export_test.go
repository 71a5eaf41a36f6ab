package kernel

import (
	"os"
	"path/filepath"
)

// Put makes the directory of a kernel from given files.
func Put(dir, version, image string, modules ...string) error {
	work := dir + ".work"
	if err := os.MkdirAll(filepath.Join(work, "modules"), 0o755); err != nil {
		return err
	}
	for _, name := range append([]string{image}, modules...) {
		path := filepath.Join(work, name)
		if name != image {
			path = filepath.Join(work, "modules", name)
		}
		if err := os.WriteFile(path, []byte(version+name), 0o644); err != nil {
			return err
		}
	}
	return commitKernel(work, dir, meta{Version: version, Image: image, Modules: modules})
}
