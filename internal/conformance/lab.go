package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Options configures a run of the suite.
type Options struct {
	DataDir string // data directory with a guest kernel, on a file system with reflinks; see 'pandastack setup'
	Agent   string // path of the guest agent's program
	// Open opens a driver that stores its files below dir. The suite calls it again to simulate a new host agent.
	Open func(ctx context.Context, dir string) (vmm.Driver, error)
	Log  func(line string) // receives the log of building the root disk; may be nil
	// DisableJail runs the monitors as this process's user and outside a jail, as the node's setting does.
	DisableJail bool
	RecordCalls bool // lets system calls that are not allowed continue, as the node's setting does
}

// Lab is the data directory and the jail of one run of the suite.
type Lab struct {
	vmmtest.Lab
	work *workdir
}

// Close removes everything but the root disk, which the next run uses again.
func (l *Lab) Close(ctx context.Context) error { return l.work.close(ctx) }

// RefusedCalls returns the sorted names of system calls of monitors that are not allowed.
func (l *Lab) RefusedCalls() []string {
	l.work.mu.Lock()
	defer l.work.mu.Unlock()
	return slices.Sorted(maps.Keys(l.work.refused))
}

// memoryMiB is the memory of each machine.
const memoryMiB = 256

// Open prepares the data directory for the suite. Monitors run in a jail, as those of a node do.
func Open(ctx context.Context, o Options) (*Lab, error) {
	boot, err := kernel.Find(ctx, filepath.Join(o.DataDir, "kernel"), o.Agent)
	if err != nil {
		return nil, err
	}
	a, err := openWorkdir(ctx, o)
	if err != nil {
		return nil, err
	}
	root, err := rootDisk(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("build the root disk: %w", err), a.close(ctx))
	}
	confine, err := a.confine(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a jail: %w", err), a.close(ctx))
	}
	dir, uid, gid := a.dir, confine.UID, confine.GID
	return &Lab{work: a, Lab: vmmtest.Lab{
		Dir: dir,
		Open: func(t vmmtest.TB) vmm.Driver {
			d, err := o.Open(t.Context(), filepath.Join(dir, "driver"))
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Abandon: abandon,
		Crash: func(t vmmtest.TB, m vmm.Machine) {
			if err := unix.Kill(m.PID(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Spec: vmm.Spec{
			VCPUs: 1, MemoryMiB: memoryMiB, Kernel: boot.Kernel, Initramfs: boot.Initramfs, Cmdline: boot.Cmdline,
			Confine: confine,
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := errors.Join(disk.Clone(root, path), os.Chown(path, uid, gid)); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			empty, err := os.MkdirTemp(dir, "empty-")
			if err == nil {
				err = errors.Join(
					imagebuild.Ext4(t.Context(), empty, path, 32, "data", o.Log),
					os.Chown(path, uid, gid),
					os.Remove(empty),
				)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		Clone: func(t vmmtest.TB, from *os.File, to string) {
			f, err := os.OpenFile(to, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(disk.CloneInto(from.Name(), f), f.Close(), os.Chown(to, uid, gid))
			if err != nil {
				t.Fatal(err)
			}
		},
	}}, nil
}

// abandon simulates the death of a host agent: it closes the driver and leaves the machines running.
func abandon(t vmmtest.TB, d vmm.Driver) {
	c, ok := d.(interface{ Close() error })
	if !ok {
		t.Fatal("the driver has no Close method to leave its machines running")
		return
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// rootDisk returns the path of the root disk of template mini, and builds the disk if it does not exist.
func rootDisk(ctx context.Context, o Options) (string, error) {
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		return "", err
	}
	mini, ok := all["mini"]
	if !ok {
		return "", errors.New("there is no built-in template mini")
	}
	dir := filepath.Join(o.DataDir, "conformance")
	path := filepath.Join(dir, "mini-"+mini.Digest()[:16]+".img")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	work := filepath.Join(dir, "work")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.RemoveAll(work), os.RemoveAll(path+".new")); err != nil {
		return "", err
	}
	err = imagebuild.Build(ctx, imagebuild.Options{
		Recipe: mini, Work: work, Cache: filepath.Join(o.DataDir, "cache"), Image: path + ".new", Log: o.Log,
	})
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(path+".new"), os.RemoveAll(work))
	}
	return path, os.Rename(path+".new", path)
}
