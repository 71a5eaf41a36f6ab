package kernel

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pandastack/pandastack/internal/image/apt"
	"github.com/pandastack/pandastack/internal/lib/cleanup"
	"github.com/pandastack/pandastack/internal/lib/command"
)

// fragment is the configuration of the tuned kernel; every option it does not name is off.
//
//go:embed tuned.config
var fragment []byte

// BuildPackages are the packages of the distribution that Build needs.
var BuildPackages = []string{"bc", "bison", "flex", "gcc", "libc6-dev", "libelf-dev", "make", "xz-utils"}

// Build compiles the tuned kernel from the distribution's newest kernel source and installs it in dir.
//
// The source comes from the machine's package sources. BuildPackages must be installed. The build takes some minutes
// on two processors, and two gigabytes below dir, which it frees at the end. After an error dir is unchanged.
func Build(ctx context.Context, dir string, log command.Log) (err error) {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("build guest kernel: the tuned configuration is for amd64, this is %s", runtime.GOARCH)
	}
	source, err := newestSource(ctx)
	if err != nil {
		return err
	}
	var back cleanup.Stack
	defer func() { err = back.Settle(ctx, err) }()
	work, remove, err := buildDir(ctx, dir)
	if err != nil {
		return fmt.Errorf("build guest kernel: %w", err)
	}
	back.Push("remove kernel source", remove)
	log.Printf("fetching %s %s", source.Package, source.Version)
	debs, err := apt.Download(ctx, log, work, source.Package+"="+source.Version)
	if err != nil {
		return err
	}
	if len(debs) != 1 {
		return fmt.Errorf("build guest kernel: %d package files were downloaded, want one", len(debs))
	}
	if err := build(ctx, debs[0], work, filepath.Join(dir, Tuned), log); err != nil {
		return fmt.Errorf("build guest kernel from %s: %w", source.Package, err)
	}
	log.Printf("tuned guest kernel installed")
	return errors.Join(back.Unwind(ctx), sweep(dir, time.Now().Add(-keepUnused)))
}

func build(ctx context.Context, deb, work, dir string, log command.Log) error {
	if err := apt.Unpack(ctx, deb, work); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(work, "usr/src/linux-source-*.tar.xz"))
	if err != nil || len(archives) != 1 {
		return errors.Join(err, fmt.Errorf("the package contains %d source archives, want one", len(archives)))
	}
	tree := filepath.Join(work, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return err
	}
	log.Printf("unpacking %s", filepath.Base(archives[0]))
	unpack := dieWithParent(command.Options{Log: log})
	if err := command.Run(ctx, unpack, "tar", "-xf", archives[0], "-C", tree, "--strip-components=1"); err != nil {
		return err
	}
	config := filepath.Join(work, "tuned.config")
	if err := os.WriteFile(config, fragment, 0o644); err != nil {
		return err
	}
	opt := dieWithParent(
		command.Options{
			Dir: tree,
			Log: log,
			Env: []string{
				"KBUILD_BUILD_TIMESTAMP=Thu Jan 1 00:00:00 UTC 1970",
				"KBUILD_BUILD_USER=pandastack",
				"KBUILD_BUILD_HOST=pandastack",
			},
		},
	)
	if err := command.Run(ctx, opt, "make", "allnoconfig", "KCONFIG_ALLCONFIG="+config); err != nil {
		return err
	}
	if err := checkConfig(filepath.Join(tree, ".config")); err != nil {
		return err
	}
	if err := command.Run(ctx, opt, "make", "-j"+strconv.Itoa(runtime.NumCPU()), "vmlinux"); err != nil {
		return err
	}
	version, err := command.Output(ctx, command.Options{Dir: tree}, "make", "-s", "kernelrelease")
	if err != nil {
		return err
	}
	result := filepath.Join(work, "result")
	if err := os.Mkdir(result, 0o755); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(tree, "vmlinux"), filepath.Join(result, "vmlinux")); err != nil {
		return err
	}
	return commitKernel(result, dir, meta{Version: strings.TrimSpace(version), Image: "vmlinux"})
}

// dieWithParent makes a program and everything it starts end at once with this process, however that ends: the next
// build removes the files of this one, and no process may still write them.
func dieWithParent(o command.Options) command.Options {
	o.Kill, o.Attr = true, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return o
}

// requiredOptions are the options without which no machine boots or is restored correctly. A kernel source that has
// renamed one is refused at once, rather than discovered by a guest that hangs.
var requiredOptions = []string{
	"CONFIG_PVH=y", "CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES=y", "CONFIG_VIRTIO_BLK=y", "CONFIG_VIRTIO_NET=y",
	"CONFIG_VIRTIO_CONSOLE=y", "CONFIG_VIRTIO_VSOCKETS=y", "CONFIG_EXT4_FS=y", "CONFIG_DEVTMPFS=y",
	"CONFIG_CGROUP_FREEZER=y", "CONFIG_CGROUPS=y", "CONFIG_MEMCG=y", "CONFIG_RTC_DRV_CMOS=y",
	"CONFIG_BLK_DEV_INITRD=y", "CONFIG_UNIX98_PTYS=y", "CONFIG_SERIAL_8250_CONSOLE=y",
}

func checkConfig(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	have := strings.Split(string(data), "\n")
	var missing []string
	for _, v := range requiredOptions {
		if !slices.Contains(have, v) {
			missing = append(missing, v)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("this kernel source does not support %s", strings.Join(missing, ", "))
	}
	return nil
}

// newestSource returns the kernel source package of the highest version.
func newestSource(ctx context.Context) (apt.Version, error) {
	out, err := command.Output(ctx, command.Options{}, "apt-cache", "search", "--names-only", `^linux-source-[0-9.]+$`)
	if err != nil {
		return apt.Version{}, fmt.Errorf("build guest kernel: %w", err)
	}
	var best apt.Version
	for _, line := range strings.Split(out, "\n") {
		name, _, _ := strings.Cut(line, " ")
		if name == "" {
			continue
		}
		offers, err := apt.Versions(ctx, name)
		if err != nil {
			return apt.Version{}, err
		}
		for _, o := range offers {
			if best.Package == "" || apt.Compare(o.Version, best.Version) > 0 {
				best = o
			}
		}
	}
	if best.Package == "" {
		return apt.Version{}, errors.New(
			"build guest kernel: the package sources offer no linux-source package; run `apt-get update` or add a " +
				"source",
		)
	}
	return best, nil
}

// Installed returns the versions of the intact kernels in dir. A version is empty if the kernel is missing or
// damaged.
func Installed(dir string) (distributionVersion, tunedVersion string) {
	if m, err := load(filepath.Join(dir, Distribution)); err == nil {
		distributionVersion = m.Version
	}
	if m, err := load(filepath.Join(dir, Tuned)); err == nil {
		tunedVersion = m.Version
	}
	return distributionVersion, tunedVersion
}
