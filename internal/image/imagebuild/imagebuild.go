// Package imagebuild makes an ext4 image from a recipe: packages, then a user and fixed identity, then one file.
//
// It owns the root file system until it is an image: the programs that build it, the cache of packages, and the files
// that every template's root has in common. It does not know guests, snapshots or users.
//
// Packages come from the sources the machine itself uses; no address is built in. The programs that build run in a
// mount namespace of their own, so all their mounts end with them. Temporary files are below the work directory,
// which Build removes; if the process is killed, the owner of the directory above removes it. Builds may run
// concurrently in different work directories; they share a package cache under a lock.
package imagebuild

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pandastack/pandastack/internal/image/recipe"
	"github.com/pandastack/pandastack/internal/lib/command"
	"github.com/pandastack/pandastack/internal/os/disk"
)

// Options describe a build.
type Options struct {
	Recipe recipe.Recipe
	Work   string // directory for temporary files; made, and removed at the end; on the file system of Image
	Cache  string // directory of downloaded packages, kept; empty: none
	Image  string // path of the result; must not exist
	// Data holds the path of the image of each of the recipe's data disks, by its name; none may exist.
	Data map[string]string
	Log  command.Log
	// Step is called when a part begins: "rootfs", then "image". May be nil.
	Step func(name string)
}

// Build makes the images of a recipe: raw ext4 of the recipe's sizes, sparse, in few extents, durable.
//
// It takes a minute or two. On an error, or when the context ends, it leaves neither images nor the work directory.
func Build(ctx context.Context, opt Options) (err error) {
	if err := os.MkdirAll(opt.Work, 0o755); err != nil {
		return fmt.Errorf("build image: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(opt.Work)) }()
	opt.step("rootfs")
	root := filepath.Join(opt.Work, "root")
	if err := Root(ctx, opt.Recipe, opt.Work, opt.Cache, opt.Log); err != nil {
		return err
	}
	opt.step("image")
	if err := dataDisks(ctx, opt, root); err != nil {
		return err
	}
	err = Ext4(ctx, root, opt.Image, opt.Recipe.DiskMiB, opt.Recipe.Digest(), opt.Log)
	if err != nil {
		for _, path := range opt.Data {
			err = errors.Join(err, disk.Remove(path))
		}
	}
	return err
}

func (opt Options) step(name string) {
	if opt.Step != nil {
		opt.Step(name)
	}
}

// Ext4 makes a file system image of sizeMiB at path from the tree at root, and flushes it. The identifiers of the
// file system derive from seed: every image of a recipe has the same. On an error it leaves no file at path.
func Ext4(ctx context.Context, root, path string, sizeMiB int, seed string, log command.Log) error {
	return filesystem{root: root, path: path, sizeMiB: sizeMiB, seed: seed, label: "root", mode: 0o755}.make(ctx, log)
}

// filesystem is an ext4 image to be made.
type filesystem struct {
	root     string // its content
	path     string
	sizeMiB  int
	seed     string
	label    string
	uid, gid uint32      // of its root directory
	mode     os.FileMode // of its root directory
}

func (f filesystem) make(ctx context.Context, log command.Log) (err error) {
	raw := f.path + ".raw"
	if err := disk.Allocate(raw, int64(f.sizeMiB)<<20); err != nil {
		return fmt.Errorf("make ext4 image: %w", err)
	}
	defer func() { err = errors.Join(err, disk.Remove(raw)) }()
	id := uuid(f.seed)
	err = command.Run(
		ctx,
		command.Options{Log: log},
		"mke2fs",
		"-q",
		"-F",
		"-t",
		"ext4",
		"-d",
		f.root,
		"-L",
		f.label,
		"-U",
		id,
		"-m",
		"0", // no blocks reserved for root: the whole disk is the user's
		"-J",
		"size=8", // small: no clone shares the space of a journal that is overwritten in a circle
		"-G",
		"64", // metadata of many groups together: fewer extents
		"-O",
		"^metadata_csum", // without KVM, metadata checksums are rarely run code that a guest must translate first
		"-E",
		fmt.Sprintf("hash_seed=%s,root_owner=%d:%d,lazy_itable_init=0,lazy_journal_init=0,nodiscard", id, f.uid, f.gid),
		raw,
	)
	if err != nil {
		return fmt.Errorf("make ext4 image of %d MiB: %w; the size in the recipe may be too small", f.sizeMiB, err)
	}
	if f.mode.Perm() != 0o755 { // mke2fs sets mode 0755
		err := command.Run(
			ctx,
			command.Options{Log: log},
			"debugfs",
			"-w",
			"-R",
			fmt.Sprintf("set_inode_field <2> mode 040%03o", f.mode.Perm()),
			raw,
		)
		if err != nil {
			return fmt.Errorf("make ext4 image: %w", err)
		}
	}
	if err := disk.Rewrite(ctx, raw, f.path); err != nil {
		return fmt.Errorf("make ext4 image: %w", err)
	}
	return nil
}
