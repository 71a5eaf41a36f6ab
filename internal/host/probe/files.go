package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/lib/command"
	"github.com/pandastack/pandastack/internal/os/disk"
)

func (c Config) root(context.Context) Finding {
	if os.Geteuid() == 0 {
		return ok("running as root")
	}
	return fail(
		"run pandastack as root (sudo)",
		"running as user %d, which cannot create networks, control groups and images",
		os.Geteuid(),
	)
}

var versionLine = regexp.MustCompile(`version (\d+)\.(\d+)[.\d]*`)

func (c Config) qemu(ctx context.Context) Finding {
	out, err := command.Output(ctx, command.Options{}, c.binary(), "--version")
	if errors.Is(err, exec.ErrNotFound) {
		return fail(fixSetup, "%s is not installed", c.binary())
	}
	if err != nil {
		return fail(fixSetup, "%s does not run: %v", c.binary(), err)
	}
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return fail(fixSetup, "%s reports no version: %q", c.binary(), strings.TrimSpace(out))
	}
	major, _ := strconv.Atoi(m[1]) // digits by the expression
	minor, _ := strconv.Atoi(m[2])
	text := "QEMU " + strings.TrimPrefix(m[0], "version ")
	switch {
	case major < 7 || major == 7 && minor < 2:
		return fail(fixSetup, "%s is too old; 7.2 is the oldest that works", text)
	case major < 10:
		return warn(fixSetup+", which installs QEMU 10 from backports if the distribution has it",
			"%s works; 10 can open memory images read-only", text)
	}
	return ok("%s", text)
}

func (c Config) kernel(context.Context) Finding {
	version, err := kernel.Check(filepath.Join(c.DataDir, "kernel"))
	var none *kernel.NotFoundError
	if errors.As(err, &none) {
		return fail(fixSetup, "no guest kernel in %s", none.Dir)
	}
	if err != nil {
		return fail(fixSetup, "%v", err)
	}
	return ok("%s", version)
}

func (c Config) guestAgent(context.Context) Finding {
	if c.GuestAgent == "" {
		return fail("set guest_agent, or build with `make build`", "the path of the guest agent is not set")
	}
	if err := kernel.CheckAgent(c.GuestAgent); err != nil {
		return fail("build it with `make build`, or set guest_agent", "%v", err)
	}
	return ok("%s", c.GuestAgent)
}

// nearestExisting returns the nearest directory above path that exists.
func nearestExisting(path string) string {
	for {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			return path
		}
		up := filepath.Dir(path)
		if up == path {
			return path
		}
		path = up
	}
}

func (c Config) reflink(context.Context) Finding {
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return fail(fixSetup, "the data directory %s does not exist", c.DataDir)
	}
	mounted, err := disk.Mounted(c.DataDir)
	if err != nil {
		return fail("make the data directory readable", "%v", err)
	}
	if _, err := os.Stat(disk.ImagePath(c.DataDir)); err == nil && !mounted {
		return ok("the data directory's XFS image exists; a node mounts it at start")
	}
	var no *disk.NoReflinkError
	switch err := disk.Probe(c.DataDir); {
	case errors.As(err, &no):
		return fail(
			fixSetup+", which puts an XFS image there",
			"%s is on %s, which cannot clone files",
			no.Dir,
			no.Type,
		)
	case err != nil:
		return fail("make the data directory writable", "%v", err)
	}
	kind, err := disk.Type(c.DataDir)
	if err != nil {
		kind = "a file system of unknown type"
	}
	return ok("a file below %s was cloned; it is on %s", c.DataDir, kind)
}

// Space below which images cannot be built, and below which it gets tight.
const (
	diskFailMiB = 3 << 10
	diskWarnMiB = 10 << 10
)

func (c Config) disk(context.Context) Finding {
	at := nearestExisting(c.DataDir)
	free, total, err := disk.Free(at)
	if err != nil {
		return fail("make the data directory readable", "%v", err)
	}
	if mounted, err := disk.Mounted(c.DataDir); err == nil && mounted {
		// a sparse image is limited by the file system below it
		if below, _, err := disk.Free(filepath.Dir(filepath.Clean(c.DataDir))); err == nil {
			if _, err := os.Stat(disk.ImagePath(c.DataDir)); err == nil {
				free = min(free, below)
			}
		}
	}
	text := fmt.Sprintf("%.1f of %.1f GiB free at %s", gib(free), gib(total), at)
	switch mib := free >> 20; {
	case mib < diskFailMiB:
		return fail(
			"free some space, or choose another data directory",
			"%s; a template needs %d GiB while it is built",
			text,
			diskFailMiB>>10,
		)
	case mib < diskWarnMiB:
		return warn("free some space, or choose another data directory", "%s", text)
	}
	return ok("%s", text)
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

// program is a tool of the distribution and its package.
type program struct{ name, pkg string }

// Programs that the node calls besides QEMU, in the order of the report.
var programs = []program{
	{"mmdebstrap", "mmdebstrap"}, {"mke2fs", "e2fsprogs"}, {"mkfs.xfs", "xfsprogs"}, {"xz", "xz-utils"},
	{"dpkg-deb", "dpkg"}, {"apt-get", "apt"},
}

func tools(context.Context) Finding {
	var missing, found []string
	for _, p := range programs {
		if _, err := lookPath(p.name); err != nil {
			missing = append(missing, fmt.Sprintf("%s (package %s)", p.name, p.pkg))
		} else {
			found = append(found, p.name)
		}
	}
	if len(missing) > 0 {
		return fail(fixSetup, "not installed: %s", strings.Join(missing, ", "))
	}
	return ok("%s", strings.Join(found, ", "))
}

// lookPath also searches the directories of administrators' programs, which the PATH of ordinary users lacks.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", err
}

func loop(context.Context) Finding {
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return warn("load the kernel module loop, or use a data directory on XFS or btrfs",
			"loop devices cannot be used (%v): an XFS image cannot be mounted", err)
	}
	_ = f.Close() // nothing was written
	return ok("loop devices can be used")
}
