package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pandastack/pandastack/internal/image/imagebuild"
	"github.com/pandastack/pandastack/internal/image/kernel"
	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/os/disk"
	"github.com/pandastack/pandastack/internal/vmm"
	"github.com/pandastack/pandastack/internal/vmm/vmmtest"
)

// Options say what a run starts from.
type Options struct {
	DataDir string // with a guest kernel, on a file system that shares blocks; setup makes it
	Agent   string // the guest agent's program
	// Open makes a driver that keeps what it needs below dir. It is called again when a host agent dies.
	Open func(ctx context.Context, dir string) (vmm.Driver, error)
	Log  func(line string) // of the building of the root disk; may be nil
}

// nobody runs the monitors.
const nobody = 65534

// memoryMiB is the machines' memory.
const memoryMiB = 256

// Lab makes what the suite needs in the data directory. The second answer removes it again, apart from the
// root disk.
func Lab(ctx context.Context, o Options) (vmmtest.Lab, func() error, error) {
	boot, err := kernel.Find(ctx, filepath.Join(o.DataDir, "kernel"), o.Agent)
	if err != nil {
		return vmmtest.Lab{}, nil, err
	}
	a, err := enter(ctx, o)
	if err != nil {
		return vmmtest.Lab{}, nil, err
	}
	root, err := rootDisk(ctx, o)
	if err != nil {
		return vmmtest.Lab{}, nil, errors.Join(fmt.Errorf("make the root disk: %w", err), a.leave())
	}
	dir := a.dir
	return vmmtest.Lab{
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
			Confine: vmm.Confine{UID: nobody, GID: nobody},
		},
		Disk: func(t vmmtest.TB, path string) {
			if err := errors.Join(disk.Clone(root, path), os.Chown(path, nobody, nobody)); err != nil {
				t.Fatal(err)
			}
		},
		Data: func(t vmmtest.TB, path string) {
			empty, err := os.MkdirTemp(dir, "empty-")
			if err == nil {
				err = errors.Join(
					imagebuild.Ext4(t.Context(), empty, path, 32, "data", o.Log),
					os.Chown(path, nobody, nobody),
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
			if err := errors.Join(disk.CloneInto(from.Name(), f), f.Close(), os.Chown(to, nobody, nobody)); err != nil {
				t.Fatal(err)
			}
		},
	}, a.leave, nil
}

// abandon does what the death of a host agent does: a driver lets go of its machines.
func abandon(t vmmtest.TB, d vmm.Driver) {
	c, ok := d.(interface{ Close() error })
	if !ok {
		t.Fatal("the driver cannot let go of its machines")
		return
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// rootDisk builds the disk of the smallest template, once.
func rootDisk(ctx context.Context, o Options) (string, error) {
	all, err := recipe.Builtin(recipe.Options{})
	if err != nil {
		return "", err
	}
	mini, ok := all["mini"]
	if !ok {
		return "", errors.New("there is no template mini")
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
