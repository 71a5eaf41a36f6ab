//go:build root

package imagebuild

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pandastack/pandastack/internal/host/probe"
	"github.com/pandastack/pandastack/internal/host/probe/probetest"
	"github.com/pandastack/pandastack/internal/image/recipe"
)

// withData returns a root file system with a file at /srv/data, of another user, and a work directory.
func withData(t *testing.T) (root string, opt Options) {
	t.Helper()
	probetest.Need(t, probe.Config{}, probe.Root, probe.Tools)
	work := t.TempDir()
	root = filepath.Join(work, "root")
	at := filepath.Join(root, "srv/data")
	err := errors.Join(
		os.MkdirAll(filepath.Join(at, "deep"), 0o755),
		os.WriteFile(filepath.Join(at, "deep", "file"), []byte("content"), 0o640),
		os.Chown(filepath.Join(at, "deep", "file"), 105, 106),
		os.Chown(at, 105, 106),
		os.Chmod(at, 0o700),
		os.MkdirAll(filepath.Join(root, "other"), 0o755),
		os.Symlink("other", filepath.Join(root, "link")),
	)
	if err != nil {
		t.Fatal(err)
	}
	return root, Options{Work: work, Data: map[string]string{"data": filepath.Join(work, "data.img")},
		Recipe: recipe.Recipe{Disks: []recipe.Disk{{Name: "data", SizeMiB: 32, Mount: "/srv/data"}}}}
}

func inside(t *testing.T, image, request string) string {
	t.Helper()
	out, err := exec.Command("debugfs", "-R", request, image).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestDataDiskContainsItsMountPoint(t *testing.T) {
	root, opt := withData(t)
	if err := dataDisks(t.Context(), opt, root); err != nil {
		t.Fatal(err)
	}
	image := opt.Data["data"]
	if out, err := exec.Command("e2fsck", "-fn", image).CombinedOutput(); err != nil {
		t.Errorf("the file system is not clean: %v: %s", err, out)
	}
	if info, err := os.Stat(image); err != nil || info.Size() != 32<<20 {
		t.Errorf("got image %+v, %v", info, err)
	}
	if got := inside(t, image, "cat /deep/file"); got != "content" {
		t.Errorf("got file content %q", got)
	}
	for name, want := range map[string][]string{
		"<2>":        {"Mode:  0700", "User:   105   Group:   106"},
		"/deep/file": {"Mode:  0640", "User:   105   Group:   106"},
	} {
		for _, w := range want {
			if got := inside(t, image, "stat "+name); !strings.Contains(got, w) {
				t.Errorf("%s lacks %q: %s", name, w, got)
			}
		}
	}
	info, err := os.Stat(filepath.Join(root, "srv/data"))
	list, lerr := os.ReadDir(filepath.Join(root, "srv/data"))
	if err != nil || lerr != nil || len(list) != 0 || info.Mode().Perm() != 0o700 {
		t.Errorf("got mount point with mode %v, entries %v, errors %v, %v", info.Mode(), list, err, lerr)
	}
}

func TestInvalidDataDisks(t *testing.T) {
	for name, change := range map[string]func(root string, opt *Options){
		"a link":    func(_ string, opt *Options) { opt.Recipe.Disks[0].Mount = "/link" },
		"a file":    func(_ string, opt *Options) { opt.Recipe.Disks[0].Mount = "/srv/data/deep/file" },
		"nothing":   func(_ string, opt *Options) { opt.Recipe.Disks[0].Mount = "/none" },
		"no path":   func(_ string, opt *Options) { opt.Data = nil },
		"another's": func(_ string, opt *Options) { opt.Data = map[string]string{"x": opt.Data["data"]} },
		"too small": func(root string, opt *Options) {
			if err := os.WriteFile(filepath.Join(root, "other", "big"), make([]byte, 20<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			opt.Recipe.Disks = append(opt.Recipe.Disks, recipe.Disk{Name: "small", SizeMiB: 16, Mount: "/other"})
			opt.Data["small"] = opt.Data["data"] + ".small"
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, opt := withData(t)
			path := opt.Data["data"]
			change(root, &opt)
			if err := dataDisks(t.Context(), opt, root); err == nil {
				t.Error("dataDisks: got no error")
			}
			for _, p := range []string{path, path + ".small", path + ".raw", path + ".small.raw"} {
				if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s exists after the error: %v", filepath.Base(p), err)
				}
			}
		})
	}
}
