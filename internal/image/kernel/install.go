package kernel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// Install installs the distribution's newest cloud kernel in dir. It unpacks the package without installing it on the
// host.
//
// It keeps an intact kernel of the same version. The package lists must exist (apt.Update). After an error dir is
// unchanged.
func Install(ctx context.Context, dir string, log command.Log) (err error) {
	pkg, err := newest(ctx)
	if err != nil {
		return err
	}
	release := strings.TrimPrefix(pkg.Package, "linux-image-")
	if m, err := load(filepath.Join(dir, Distribution)); err == nil && m.Version == release {
		log.Printf("guest kernel %s is installed already", release)
		return nil
	}
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	work, remove, err := buildDir(ctx, dir)
	if err != nil {
		return fmt.Errorf("install guest kernel: %w", err)
	}
	back.Push("remove unpacked kernel", remove)
	log.Printf("fetching %s %s", pkg.Package, pkg.Version)
	debs, err := apt.Download(ctx, log, work, pkg.Package+"="+pkg.Version)
	if err != nil {
		return err
	}
	if len(debs) != 1 {
		return fmt.Errorf("install guest kernel: %d package files were downloaded, want one", len(debs))
	}
	if err := install(ctx, debs[0], work, filepath.Join(dir, Distribution)); err != nil {
		return fmt.Errorf("install guest kernel %s: %w", release, err)
	}
	log.Printf("guest kernel %s installed", release)
	return errors.Join(back.Unwind(ctx), sweep(dir, time.Now().Add(-keepUnused)))
}

// install builds the directory of a kernel from its package.
func install(ctx context.Context, deb, work, dir string) error {
	tree := filepath.Join(work, "tree")
	if err := apt.Unpack(ctx, deb, tree); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return errors.Join(err, fmt.Errorf("the package contains %d kernels, want one", len(images)))
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	result := filepath.Join(work, "result")
	if err := os.MkdirAll(filepath.Join(result, "modules"), 0o755); err != nil {
		return err
	}
	order, err := modules(ctx, moduleTree(tree, release), filepath.Join(result, "modules"))
	if err != nil {
		return err
	}
	if err := os.Rename(images[0], filepath.Join(result, "vmlinuz")); err != nil {
		return err
	}
	return commitKernel(result, dir, meta{Version: release, Image: "vmlinuz", Modules: order})
}

// moduleTree returns the directory of a package's modules: some distributions have merged /lib into /usr.
func moduleTree(tree, release string) string {
	if _, err := os.Stat(filepath.Join(tree, "lib")); errors.Is(err, fs.ErrNotExist) {
		tree = filepath.Join(tree, "usr")
	}
	return filepath.Join(tree, "lib", "modules", release)
}

// newest returns the package that the cloud kernel's meta package depends on, in its highest version.
func newest(ctx context.Context) (apt.Version, error) {
	name := "linux-image-cloud-" + runtime.GOARCH
	offers, err := apt.Versions(ctx, name)
	if err != nil {
		return apt.Version{}, err
	}
	if len(offers) == 0 {
		return apt.Version{}, fmt.Errorf(
			"install guest kernel: the package sources offer no %s; run `apt-get update`, "+
				"or on a distribution other than Debian build the tuned kernel with `make kernel`",
			name,
		)
	}
	best := slices.MaxFunc(offers, func(a, b apt.Version) int { return apt.Compare(a.Version, b.Version) })
	needs, err := apt.Depends(ctx, best)
	if err != nil {
		return apt.Version{}, err
	}
	for _, n := range needs {
		if strings.HasPrefix(n, "linux-image-") {
			return apt.Version{Package: n, Version: best.Version, Suite: best.Suite}, nil
		}
	}
	return apt.Version{}, fmt.Errorf("install guest kernel: package %s %s depends on no kernel", name, best.Version)
}

// keepUnused is how long an initramfs is kept after its last use: a running node may boot from one that its successor
// does not need.
const keepUnused = 7 * 24 * time.Hour

// sweep removes archives of kernels and guest agents that were not used since the given time. Find makes the one it
// needs.
func sweep(dir string, since time.Time) error {
	old, err := filepath.Glob(filepath.Join(dir, "initramfs-*.cpio"))
	if err != nil {
		return err
	}
	var all error
	for _, path := range old {
		info, err := os.Stat(path)
		if err == nil && info.ModTime().Before(since) {
			err = os.Remove(path)
		}
		all = errors.Join(all, err)
	}
	return all
}
