package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// dataDisks makes the images of the recipe's data disks from the content of their mount points in root, and empties
// those. On an error it leaves no image.
func dataDisks(ctx context.Context, opt Options, root string) (err error) {
	if len(opt.Data) != len(opt.Recipe.Disks) {
		return fmt.Errorf("make data disks: paths are set for %d disks, but the recipe has %d", len(opt.Data),
			len(opt.Recipe.Disks))
	}
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, path := range made {
			err = errors.Join(err, disk.Remove(path))
		}
	}()
	for _, d := range opt.Recipe.Disks {
		if opt.Data[d.Name] == "" {
			return fmt.Errorf("make data disk %s: no path is set", d.Name)
		}
		f, err := moveOut(root, opt.Work, d)
		if err != nil {
			return fmt.Errorf("make data disk %s: %w", d.Name, err)
		}
		f.path, f.seed = opt.Data[d.Name], opt.Recipe.Digest()+" "+d.Name
		if err := f.make(ctx, opt.Log); err != nil {
			return fmt.Errorf("make data disk %s: %w", d.Name, err)
		}
		made = append(made, f.path)
	}
	return nil
}

// moveOut moves the content of a disk's mount point out of the root, and leaves an empty directory with the same
// attributes.
func moveOut(root, work string, d recipe.Disk) (filesystem, error) {
	at := filepath.Join(root, d.Mount)
	if real, err := filepath.EvalSymlinks(at); err != nil {
		return filesystem{}, err
	} else if whole, err := filepath.EvalSymlinks(root); err != nil || real != filepath.Join(whole, d.Mount) {
		return filesystem{}, errors.Join(fmt.Errorf("%s is a symbolic link, or below one", d.Mount), err)
	}
	info, err := os.Lstat(at)
	if err != nil {
		return filesystem{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() {
		return filesystem{}, fmt.Errorf("%s is not a directory", d.Mount)
	}
	f := filesystem{
		root: filepath.Join(
			work,
			"disk-"+d.Name,
		), sizeMiB: d.SizeMiB, label: d.Name, uid: st.Uid, gid: st.Gid, mode: info.Mode().Perm(),
	}
	if err := errors.Join(os.Rename(at, f.root), os.Mkdir(at, 0o755)); err != nil {
		return filesystem{}, err
	}
	return f, errors.Join(os.Chown(at, int(st.Uid), int(st.Gid)), os.Chmod(at, f.mode))
}
